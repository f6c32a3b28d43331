// The address of the view: a button copies it, and the arm that a legend shows alone is written into it.
(() => {
  if (window.sorlLink) return;
  window.sorlLink = true;

  document.addEventListener('click', async event => {
    const button = event.target.closest?.('.sorl-copy button');
    if (button) {
      const told = button.parentElement.querySelector('[aria-live]');
      told.textContent = (await copied(location.href)) ? 'Copied.' : location.href;
      return;
    }
    const entry = event.target.closest?.('.legend .traces'), drawn = entry?.closest('.st-key-curves .js-plotly-plot');
    if (drawn) setTimeout(() => write(drawn), 700); // Plotly waits whether a second click follows
  });

  async function copied(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { // not allowed, or an address without https
      const area = Object.assign(document.createElement('textarea'), { value: text });
      document.body.append(area);
      area.select();
      const done = document.execCommand('copy');
      area.remove();
      return done;
    }
  }

  function write(drawn) {
    const entries = drawn._fullData.filter(trace => trace.showlegend && trace.legendgroup);
    const alone = entries.filter(trace => trace.visible === true);
    const address = new URL(location.href);
    address.searchParams.delete('only');
    if (alone.length === 1 && entries.length > 1) {
      const words = new DOMParser().parseFromString(alone[0].legendgroup, 'text/html').body.textContent;
      address.searchParams.set('only', words);
    }
    history.replaceState(history.state, '', address);
  }
})();
