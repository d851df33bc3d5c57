// Keeps the keyboard's focus while lists change under it.

/** The element and those that contain it, the innermost first. */
function pathOf(element: EventTarget | null): HTMLElement[] {
  const path: HTMLElement[] = [];
  for (let e = element as HTMLElement | null; e; e = e.parentElement) path.push(e);
  return path;
}

/** Gives the focus back when a change of the root's content has taken it away. A browser does so when the focused
 * element is removed, and also when it is moved. Then the element gets it again, or else the innermost element around
 * it that is still there and can have the focus. It works until the document ends. */
export function keepFocus(root: HTMLElement): void {
  let path: HTMLElement[] = [];
  document.addEventListener('focusin', e => { path = pathOf(e.target); });
  document.addEventListener('pointerdown', () => { path = []; }, true); // a click beside everything ends the focus
  new MutationObserver(() => {
    if (document.activeElement !== document.body) return;
    const to = path.find((e, i) => e.isConnected && (i === 0 || e.hasAttribute('tabindex')));
    to?.focus({ preventScroll: true });
  }).observe(root, { childList: true, subtree: true });
}
