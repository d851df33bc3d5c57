// What screen readers say by themselves while the page changes.
import { useEffect, useRef, useState } from 'preact/hooks';

const CALM = 15_000; // ms between two announcements of what changes by itself
const SOON = 700; // ms until the answer to what the viewer does; the stream changes the page once a second at most

/** Announces a text that changes often: the newest one, at most every 15 seconds. An empty one is not announced. asked
 * is what the viewer has chosen; after its change the text is announced soon. */
export function Announced({ text, asked = '' }: { text: string; asked?: string }) {
  const [said, setSaid] = useState('');
  const last = useRef({ at: -Infinity, asked });
  useEffect(() => {
    if (!text || text === said) return;
    const calm = asked === last.current.asked ? last.current.at + CALM - Date.now() : 0;
    const timer = setTimeout(() => {
      last.current = { at: Date.now(), asked };
      setSaid(text);
    }, Math.max(SOON, calm));
    return () => clearTimeout(timer);
  }, [text, asked, said]);
  return <p class="heard" role="status">{said}</p>;
}
