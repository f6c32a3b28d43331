// A picture of our own: its links open in the same session, and it can be saved as PNG or SVG.
const FONT = 'Helvetica, Arial, sans-serif'; // a saved image cannot load the app's font

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
  const gone = new AbortController();
  document.addEventListener('click', ({ target }) => { // the buttons stand below, and come when they come
    const button = target.closest?.(`.sorl-export[data-figure="${data.name}"] button`);
    if (button) save(root.querySelector('svg'), data, button.dataset.format);
  }, { signal: gone.signal });
  return () => gone.abort();
}

function save(drawn, { name, background }, format) {
  const { width, height } = drawn.getBoundingClientRect();
  const copy = drawn.cloneNode(true);
  copy.setAttribute('width', width);
  copy.setAttribute('font-family', FONT);
  copy.querySelectorAll('a').forEach(link => link.removeAttribute('href'));
  copy.insertAdjacentHTML('afterbegin', `<rect width="100%" height="100%" fill="${background}"/>`);
  const address = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: 'image/svg+xml' }));
  if (format === 'svg') return keep(address, `sorl-${name}.svg`);
  const image = new Image();
  image.onload = () => {
    const canvas = Object.assign(document.createElement('canvas'), { width: 2 * width, height: 2 * height });
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(blob => keep(URL.createObjectURL(blob), `sorl-${name}.png`));
    URL.revokeObjectURL(address);
  };
  image.src = address;
}

function keep(address, file) {
  Object.assign(document.createElement('a'), { href: address, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
