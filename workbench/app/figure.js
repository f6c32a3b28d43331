// What a page does with each of its figures: saves it with title and caption, and opens its marks by mouse and keys.
(() => {
  if (window.sorl) return;
  window.sorl = true;
  const FONT = 'Helvetica, Arial, sans-serif'; // a saved image cannot load the app's font
  const plotted = key => document.querySelector(`.st-key-${key} .js-plotly-plot`);

  document.addEventListener('click', event => {
    const button = event.target.closest?.('.sorl-export button');
    if (button) return save(button.parentElement.dataset, button.dataset.format);
    // Where dragging selects a part, Streamlit passes no click on.
    const drawn = event.target.closest?.('.js-plotly-plot');
    if (drawn?.layout?.meta === 'cells') open(drawn);
  });

  function open(drawn) { // a click is sent as a selection of what is pointed at
    if (!drawn._hoverdata?.length) return;
    const points = drawn._hoverdata.map(({ curveNumber, pointNumber, pointIndex, x, y, customdata }) =>
      ({ curveNumber, pointNumber, pointIndex, x, y, customdata }));
    drawn.emit('plotly_selected', { points });
  }

  // Arrows lead from mark to mark of the figure, Enter opens the one that is pointed at.
  document.addEventListener('keydown', event => {
    const here = event.target.closest?.('.sorl-marks'), drawn = here && plotted(here.parentElement.dataset.figure);
    if (!drawn?._fullData || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Enter') return open(drawn);
    const next = following(marks(drawn), here.at, event.key);
    if (!next) return;
    event.preventDefault();
    here.at = next;
    window.Plotly.Fx.hover(drawn, [{ curveNumber: next.curve, pointNumber: next.point }], [next.subplot]);
    setTimeout(() => read(drawn, here), 120); // Plotly moves its label at most every 50 ms
  });
  function read(drawn, here) {
    const lines = [...drawn.querySelectorAll('.hoverlayer text')].flatMap(text => {
      const parts = [...text.querySelectorAll('.line')];
      return parts.length ? parts.map(part => part.textContent) : [text.textContent];
    });
    here.querySelector('[aria-live]').textContent = lines.filter(Boolean).join(' ');
  }
  document.addEventListener('focusout', ({ target }) => {
    const drawn = target.matches?.('.sorl-marks') && plotted(target.parentElement.dataset.figure);
    if (drawn) window.Plotly.Fx.unhover(drawn);
  });

  function marks({ _fullData, _fullLayout }) { // that a pointer can rest on, with their places in pixels
    const found = [];
    _fullData.forEach((trace, curve) => {
      // The cells of a heat map have marks of their own.
      if (trace.visible !== true || trace.hoverinfo === 'skip' || !trace.xaxis || !trace.x || trace.z) return;
      const [x, y] = [trace.xaxis, trace.yaxis].map(name => _fullLayout[`${name[0]}axis${name.slice(1)}`]);
      const add = (point, across, up) => {
        const left = x.d2p(across), top = y.d2p(up);
        if (left >= -1 && left <= x._length + 1 && top >= -1 && top <= y._length + 1) found.push({
          curve, point, subplot: trace.xaxis + trace.yaxis, left: x._offset + left, top: y._offset + top,
          number: found.length, line: trace.mode?.includes('lines') ? curve : -1,
        });
      };
      Array.from(trace.x).forEach((value, i) => add(i, value, trace.y[i]));
    });
    return found;
  }

  function following(every, at, key) { // the nearest mark in a direction; those at one place follow by their number
    if (!['ArrowRight', 'ArrowLeft', 'ArrowDown', 'ArrowUp', 'Home', 'End'].includes(key)) return;
    if (key === 'End') return every.at(-1);
    if (!at || key === 'Home') return every[0];
    const flat = key === 'ArrowRight' || key === 'ArrowLeft';
    const sign = key === 'ArrowRight' || key === 'ArrowDown' ? 1 : -1;
    let best, least = Infinity;
    for (const mark of every) {
      const along = sign * (flat ? mark.left - at.left : mark.top - at.top);
      const aside = Math.abs(flat ? mark.top - at.top : mark.left - at.left);
      const same = Math.abs(along) <= 0.5 && aside <= 0.5;
      const near = aside <= 2 || (flat && mark.line === at.curve); // in its row or on its line: these come first
      const far = same ? Math.abs(mark.number - at.number) / 1e6 : near ? along / 4 : along + 3 * aside;
      if ((same ? sign * (mark.number - at.number) > 0 : along > 0.5) && far < least) [best, least] = [mark, far];
    }
    return best;
  }

  async function save({ figure, file, title, caption }, format) {
    const drawn = plotted(figure), { color, backgroundColor } = getComputedStyle(document.querySelector('.stApp'));
    const own = document.querySelector(`.st-key-${figure} .sorl-drawing svg`);
    const { width, height } = (drawn ?? own).getBoundingClientRect();
    let inner;
    if (drawn) {
      const layout = { ...drawn.layout, font: { ...drawn.layout.font, family: FONT } };
      const text = await window.Plotly.toImage({ data: drawn.data, layout },
        { format: 'svg', width, height, imageDataOnly: true });
      inner = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement;
    } else {
      inner = own.cloneNode(true);
      inner.querySelectorAll('a').forEach(link => link.removeAttribute('href'));
    }
    const heads = lines(title, width / 8), feet = lines(caption, width / 6.4);
    const top = 14 + 20 * heads.length, tall = top + height + 12 + 16 * feet.length + 8;
    const add = (name, of, words = '') => { // no markup in this file: Streamlit drops a script that holds a tag
      const one = document.createElementNS('http://www.w3.org/2000/svg', name);
      for (const [key, value] of Object.entries(of)) one.setAttribute(key, value);
      one.textContent = words;
      return one;
    };
    const whole = add('svg', { width, height: tall, color, 'font-family': FONT, fill: color });
    const text = (words, y, size, weight) =>
      whole.append(add('text', { x: 10, y, 'font-size': size, 'font-weight': weight }, words));
    whole.append(add('rect', { width: '100%', height: '100%', fill: backgroundColor }));
    heads.forEach((line, i) => text(line, 24 + 20 * i, 15, 600));
    for (const [name, value] of Object.entries({ x: 0, y: top, width, height })) inner.setAttribute(name, value);
    whole.append(inner);
    feet.forEach((line, i) => text(line, top + height + 20 + 16 * i, 12, 400));
    const blob = new Blob([new XMLSerializer().serializeToString(whole)], { type: 'image/svg+xml' });
    const address = URL.createObjectURL(blob);
    if (format === 'svg') return keep(address, `${file}.svg`);
    const image = new Image();
    image.onload = () => {
      const canvas = Object.assign(document.createElement('canvas'), { width: 2 * width, height: 2 * tall });
      canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(made => keep(URL.createObjectURL(made), `${file}.png`));
      URL.revokeObjectURL(address);
    };
    image.src = address;
  }

  function lines(words = '', most) {
    const found = [];
    for (const word of words.split(' ').filter(Boolean)) {
      const longer = `${found.at(-1)} ${word}`;
      if (found.length && longer.length <= most) found[found.length - 1] = longer;
      else found.push(word);
    }
    return found;
  }

  function keep(address, file) {
    Object.assign(document.createElement('a'), { href: address, download: file }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }
})();

// A legend that greys out the other arms while one of its entries is pointed at or has the focus, and a crosshair over all
// panels: what the drawing library leaves out.
(() => {
  if (window.sorlFigures) return;
  window.sorlFigures = true;
  const plot = node => node.closest?.('.js-plotly-plot');
  const entry = node => node.closest?.('.legend .traces');

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
