"""The report of experiments: what it says (content), its figures, and the page as HTML or Markdown."""
