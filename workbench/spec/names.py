"""Names that become folders: of experiments and of runs, as typed or from a file that somebody mailed."""

from sorl.spec.files import InputError

LONGEST = 200  # bytes; file systems allow 255, and temporary names add to it
RESERVED = ("segments",)  # a folder beside the runs of an experiment


class FolderName(str):
    """A name that is safe as one folder below the runs folder.

    It is checked where it is made, so no path can be built from an unchecked text.
    """

    def __new__(cls, text: object, what: str) -> "FolderName":
        """Check a text. Raises InputError, beginning with `what`, if it is empty, hidden, too long or
        reserved, or holds a separator, a control character or blanks at its ends.
        """
        reason = _why_unsafe(text)
        if reason:
            shown = repr(text)[:LONGEST]
            allowed = "use letters, digits, '-' and '_'"
            raise InputError(f"{what} {shown} is no name of a folder: {reason}; {allowed}")
        return super().__new__(cls, text)


def _why_unsafe(text: object) -> str:
    """Why a text is no name of a folder; "" if it is one."""
    if not isinstance(text, str):
        return "it is no text"
    if not text:
        return "it is empty"
    if text.startswith("."):
        return "it begins with a dot"
    if "/" in text or "\\" in text:
        return "it holds a separator of folders"
    if not text.isprintable():
        return "it holds a control character"
    if text != text.strip():
        return "it begins or ends with a blank"
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST:
        return f"it is longer than {LONGEST} bytes"
    if text in RESERVED:
        return "sorl uses that name itself"
    return ""
