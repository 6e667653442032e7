// Says what a buffer of the picture is when it is pointed at, tapped, or reached with the keys: left and right walk in the
// order of time, up and down go to the neighbour in the arena.
const picture = document.getElementById('memory'), what = document.getElementById('what');
const hint = what.textContent;
const all = [...picture.querySelectorAll('.buffers rect')];
let at = -1;

function show(element) {
  all[at]?.classList.remove('chosen');
  at = all.indexOf(element);
  all[at]?.classList.add('chosen');
  what.textContent = element ? element.querySelector('title').textContent : hint;
}

function sides(element) {
  const n = name => Number(element.getAttribute(name));
  return { left: n('x'), right: n('x') + n('width'), top: n('y'), bottom: n('y') + n('height') };
}

function neighbour(up) {
  const here = sides(all[at]), middle = (here.left + here.right) / 2;
  let best = null, distance = Infinity;
  for (const element of all) {
    const s = sides(element), far = up ? here.top - s.bottom : s.top - here.bottom;
    if (element !== all[at] && s.left <= middle && middle <= s.right && far > -0.02 && far < distance) {
      best = element;
      distance = far;
    }
  }
  return best;
}

function reached(key) {
  switch (key) {
  case 'ArrowRight': return all[Math.min(at + 1, all.length - 1)];
  case 'ArrowLeft': return all[Math.max(at - 1, 0)];
  case 'Home': return all[0];
  case 'End': return all[all.length - 1];
  case 'ArrowUp': return at < 0 ? all[0] : neighbour(true);
  case 'ArrowDown': return at < 0 ? all[0] : neighbour(false);
  default: return undefined;
  }
}

for (const kind of ['pointerover', 'click'])
  picture.addEventListener(kind, event => {
    const element = event.target.closest('.buffers rect');
    if (element) show(element);
  });
picture.addEventListener('keydown', event => {
  if (event.key === 'Escape') return show(null);
  const next = reached(event.key);
  if (next === undefined) return;
  event.preventDefault();
  if (!next) return;
  show(next);
  next.scrollIntoView({ block: 'nearest', inline: 'nearest' });
});
