// A picture of our own: its links open in the same session.
export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector('.sorl-drawing');
  root.ariaLabel = data.describe;
  if (root.shown !== data.svg) { // what is the same stays, with what is pointed at
    root.innerHTML = data.svg;
    root.shown = data.svg;
  }
  root.onclick = event => {
    const link = event.target.closest('a[data-key]');
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    setTriggerValue('opened', link.dataset.key);
  };
}
