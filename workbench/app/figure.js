// What the drawing library leaves out: clicks where dragging selects, a crosshair over all panels, and a legend that
// greys out the other arms while one of its entries is pointed at or has the focus.
(() => {
  if (window.sorlFigures) return;
  window.sorlFigures = true;
  const plot = node => node.closest?.('.js-plotly-plot');
  const entry = node => node.closest?.('.legend .traces');

  // Where dragging selects a part, Streamlit passes no click on: a click is sent as a selection of what is pointed at.
  document.addEventListener('click', ({ target }) => {
    const drawn = plot(target);
    if (drawn?.layout?.meta !== 'cells' || !drawn._hoverdata?.length) return;
    const points = drawn._hoverdata.map(({ curveNumber, pointNumber, pointIndex, x, y, customdata }) =>
      ({ curveNumber, pointNumber, pointIndex, x, y, customdata }));
    drawn.emit('plotly_selected', { points });
  });

  const grey = (drawn, group) => drawn.querySelectorAll('.scatterlayer .trace').forEach(node => {
    const { legendgroup, opacity } = node.__data__?.[0]?.trace ?? {};
    node.style.opacity = group === undefined || legendgroup === group ? opacity : 0.1;
  });
  const pointed = ({ target }) => entry(target) && grey(plot(target), entry(target).__data__[0].trace.legendgroup);
  const left = ({ target }) => entry(target) && grey(plot(target));
  for (const kind of ['mouseover', 'focusin']) document.addEventListener(kind, pointed);
  for (const kind of ['mouseout', 'focusout']) document.addEventListener(kind, left);
  document.addEventListener('keydown', event => {
    const toggle = entry(event.target)?.querySelector('.legendtoggle');
    if (!toggle || !['Enter', ' '].includes(event.key)) return;
    event.preventDefault();
    for (const kind of ['mousedown', 'mouseup']) toggle.dispatchEvent(new MouseEvent(kind, { view: window }));
  });
  new MutationObserver(() => document.querySelectorAll('.legend .traces:not([tabindex])').forEach(node => {
    const words = node.querySelector('.legendtext')?.textContent;
    for (const [name, value] of [['tabindex', 0], ['role', 'button'], ['aria-label', `Show ${words} alone`]]) {
      node.setAttribute(name, value);
    }
  })).observe(document.body, { childList: true, subtree: true });

  // Panels that share their x-axis.
  document.addEventListener('mousemove', ({ target, clientX, clientY }) => {
    const drawn = plot(target);
    document.querySelectorAll('.sorl-crosshair').forEach(line => line.parentNode === drawn || line.remove());
    const panels = Object.values(drawn?._fullLayout?._plots ?? {}).filter(({ xaxis, yaxis }) =>
      yaxis.visible && (xaxis.matches || xaxis._id === 'x') && Object.keys(drawn._fullLayout._plots).length > 2);
    const box = drawn?.getBoundingClientRect();
    const here = panels.find(({ xaxis: x, yaxis: y }) => clientX - box.x >= x._offset
      && clientX - box.x <= x._offset + x._length && clientY - box.y >= y._offset
      && clientY - box.y <= y._offset + y._length);
    const lines = [...(drawn?.querySelectorAll(':scope > .sorl-crosshair') ?? [])];
    if (!here || !here.xaxis._id) return lines.forEach(line => line.remove());
    const share = (clientX - box.x - here.xaxis._offset) / here.xaxis._length;
    panels.filter(panel => panel !== here).forEach(({ xaxis: x, yaxis: y }, place) => {
      const line = lines[place] ?? drawn.appendChild(
        Object.assign(document.createElement('i'), { className: 'sorl-crosshair' }));
      Object.assign(line.style, { left: `${x._offset + share * x._length}px`, top: `${y._offset}px`,
        height: `${y._length}px` });
    });
    lines.slice(panels.length - 1).forEach(line => line.remove());
  });
})();
