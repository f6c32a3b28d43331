// What is wider than its box fades at the side where more is hidden, and the keyboard reaches every box that scrolls.
(() => {
  if (window.sorlScroll) return;
  window.sorlScroll = true;
  const BOXES = ['.stElementContainer', '.stVerticalBlock', '.stColumn', '.sorl-scroll', '.sorl-drawing',
    '.sorl-columns-wide', '.sorl-log', '.katex-display', '.dvn-scroller', 'pre'];
  const FADE = 'data-sorl-more'; // on which sides something is hidden; style.css draws it
  const LEAST = 1; // pixels that are hidden: sizes are rounded
  const KINDS = { '.sorl-scroll': 'Table', '.sorl-drawing, .stElementContainer': 'Figure' };
  let waiting, watched;

  function mark(box) {
    const { overflowX, overflowY } = getComputedStyle(box);
    const sideways = scrolls(overflowX, box.scrollWidth - box.clientWidth);
    const upwards = scrolls(overflowY, box.scrollHeight - box.clientHeight);
    fade(box, sideways);
    if (!box.matches('.dvn-scroller')) reach(box, sideways, upwards); // the canvas of a table takes the keys there
  }

  function scrolls(overflow, hidden) {
    return hidden > LEAST && ['auto', 'scroll'].includes(overflow);
  }

  function fade(box, sideways) {
    const left = box.scrollLeft > LEAST && 'left';
    const right = box.scrollWidth - box.clientWidth - box.scrollLeft > LEAST && 'right';
    const shown = box.closest('[data-testid="stDataFrameResizable"]') ?? box; // its canvas lies beside what scrolls
    if (!sideways) return shown.removeAttribute(FADE);
    shown.setAttribute(FADE, [left, right].filter(Boolean).join(' '));
  }

  function reach(box, sideways, upwards) { // what the box had before stays
    const given = box.sorlGiven ?? [];
    if (!sideways && !upwards) {
      given.forEach(name => box.removeAttribute(name));
      box.sorlGiven = [];
      return;
    }
    const kind = Object.keys(KINDS).find(one => box.matches(one));
    const label = `${KINDS[kind] ?? 'Part'} that scrolls${sideways ? ' sideways' : ''}`;
    for (const [name, value] of Object.entries({ tabindex: 0, role: 'group', 'aria-label': label })) {
      if (box.hasAttribute(name)) continue;
      box.setAttribute(name, value);
      given.push(name);
    }
    box.sorlGiven = given;
  }

  function look() { // soon, and once for many changes
    waiting ??= setTimeout(() => {
      waiting = undefined;
      watch(document.querySelector('.stMainBlockContainer'));
      document.querySelectorAll(`.stMainBlockContainer :is(${BOXES})`).forEach(mark);
    }, 100);
  }

  function watch(page) {
    if (!page || page === watched) return;
    resized.disconnect();
    resized.observe(page);
    watched = page;
  }

  const resized = new ResizeObserver(look);
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
  document.addEventListener('scroll', ({ target }) => target.matches?.(BOXES.join()) && mark(target), true);
  window.addEventListener('resize', look);
  look();
})();
