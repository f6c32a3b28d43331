// Tells in the browser what happens to a run while the page is open, once each; a button asks whether it may.
(() => {
  if (window.sorlBell) return;
  window.sorlBell = true;
  const told = new Set(), MANY = 3;
  let read = '[]';
  // The button is shown while the browser has not been asked, the words next to it where it said no.
  const ask = () => { document.documentElement.dataset.sorlBell = window.Notification?.permission ?? 'none'; };
  ask();

  document.addEventListener('click', async event => {
    if (!event.target.closest?.('.sorl-bell button')) return;
    await window.Notification.requestPermission();
    ask();
  });

  function tell(title, body, tag, where) { // one that another tab has told with the same tag is replaced in silence
    const shown = new window.Notification(title, { body, tag });
    shown.onclick = () => { window.focus(); location.href = where; };
  }

  new MutationObserver(() => {
    const news = document.querySelector('.sorl-bell')?.dataset.news ?? read;
    if (news === read) return;
    read = news;
    const fresh = JSON.parse(news).filter(([, , tag]) => !told.has(tag) && told.add(tag));
    if (window.Notification?.permission !== 'granted') return;
    if (fresh.length <= MANY) fresh.forEach(one => tell(...one));
    else tell(`${fresh.length} alerts`, fresh.slice(0, MANY).map(([title]) => title).join('\n'), 'sorl', './');
  }).observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ['data-news'] });
})();
