/** Making elements without markup: text is only ever set as text. */

type Attributes = Readonly<Record<string, string>>;

/** Make an element; `className` without attributes is the common case. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = '',
  attributes: Attributes = {},
  children: readonly (Node | string)[] = []
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className !== '') {
    node.className = className;
  }
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Set a text only when it differs, which spares selections and screen readers. */
export function setText(node: Element, value: string): void {
  if (node.textContent !== value) {
    node.textContent = value;
  }
}

/** Set or, with null, remove an attribute; only when it differs. */
export function setAttribute(
  node: Element,
  name: string,
  value: string | null
): void {
  if (value === null) {
    node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

/** Show or hide an element, for everyone. */
export function setShown(node: HTMLElement, shown: boolean): void {
  if (node.hidden === shown) {
    node.hidden = !shown;
  }
}

/** So long JupyterLab may still give the focus to a notebook that it has just opened. */
const KEEP_FOCUS_MS = 2000;

/** Take the focus back, once, if something else than the user takes it away within moments. */
export function keepFocus(focused: HTMLElement): void {
  const ending = new AbortController();
  const { signal } = ending;
  const end = (): void => {
    ending.abort();
  };
  setTimeout(end, KEEP_FOCUS_MS);
  document.addEventListener('keydown', end, { capture: true, signal });
  document.addEventListener('pointerdown', end, { capture: true, signal });
  focused.addEventListener(
    'focusout',
    ({ relatedTarget }) => {
      end();
      const isAsked =
        relatedTarget instanceof Element && relatedTarget.closest('.jp-Dialog');
      if (!isAsked) {
        setTimeout(() => {
          focused.focus();
        });
      }
    },
    { signal }
  );
}

const SVG = 'http://www.w3.org/2000/svg';

/** The icons, as paths in a box of 16 by 16; they differ in shape, not only in colour. */
const PATHS = {
  none: 'M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11Zm0 1.6a3.9 3.9 0 1 1 0 7.8 3.9 3.9 0 0 1 0-7.8Z',
  busy: 'M8 2a6 6 0 1 0 6 6h-1.7A4.3 4.3 0 1 1 8 3.7V2Z',
  active:
    'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm3.2 4.5-3.9 4a.8.8 0 0 1-1.1 0L4.7 9a.8.8 0 0 1 1.1-1.1l.9.9 3.4-3.4a.8.8 0 1 1 1.1 1.1Z',
  hibernated: 'M6.6 2.2a6 6 0 1 0 7.2 7.2A5 5 0 0 1 6.6 2.2Z',
  archived: 'M2 3h12v3H2V3Zm1 4h10v6H3V7Zm3 1.2v1.4h4V8.2H6Z',
  failed:
    'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm2.8 7.7-1.1 1.1L8 9.1l-1.7 1.7-1.1-1.1L6.9 8 5.2 6.3l1.1-1.1L8 6.9l1.7-1.7 1.1 1.1L9.1 8l1.7 1.7Z',
  expired:
    'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm0 1.6a4.4 4.4 0 1 1 0 8.8 4.4 4.4 0 0 1 0-8.8Zm-.7 1.4v3.3l2.5 2.5 1-1-2.1-2.1V5H7.3Z',
  unknown:
    'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm-.8 8.6h1.6v1.5H7.2v-1.5ZM8 4c1.6 0 2.7 1 2.7 2.3 0 1-.6 1.5-1.2 2-.5.4-.7.6-.7 1.3H7.2c0-1.3.5-1.8 1.1-2.3.5-.4.8-.6.8-1.1 0-.5-.4-.8-1.1-.8s-1.1.4-1.2 1.1H5.2C5.3 5 6.4 4 8 4Z',
  warning: 'M8 1.8 15 14H1L8 1.8Zm-.8 4.7v4h1.6v-4H7.2Zm0 5v1.5h1.6v-1.5H7.2Z',
  info: 'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Zm-.8 5h1.6v4.5H7.2V7Zm0-2.5h1.6V6H7.2V4.5Z',
  done: 'm6.3 12.3-4-4 1.2-1.2 2.8 2.8 6.2-6.2 1.2 1.2-7.4 7.4Z',
  current: 'M8 4.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7Z',
  todo: 'M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6Zm0 1.2a1.8 1.8 0 1 1 0 3.6 1.8 1.8 0 0 1 0-3.6Z',
  copy: 'M5 1.5h8v9h-1.4V2.9H5V1.5ZM3 4h7.5v10.5H3V4Zm1.4 1.4v7.7h4.7V5.4H4.4Z',
  lock: 'M8 1.5a3 3 0 0 0-3 3V7H3.5v7h9V7H11V4.5a3 3 0 0 0-3-3ZM8 3a1.5 1.5 0 0 1 1.5 1.5V7h-3V4.5A1.5 1.5 0 0 1 8 3Z',
  notebook:
    'M3 2h10v12H3V2Zm1.5 1.5v9h1v-9h-1Zm2.5 0v9h4.5v-9H7Zm1 1.5h2.5v1.2H8V5Z',
  refresh:
    'M8 2.6a5.4 5.4 0 0 1 4.6 2.6L14 3.8v4.1H9.9l1.6-1.6A3.9 3.9 0 0 0 4.2 7H2.7A5.4 5.4 0 0 1 8 2.6ZM2 8.1h4.1L4.5 9.7A3.9 3.9 0 0 0 11.8 9h1.5a5.4 5.4 0 0 1-9.9 1.8L2 12.2V8.1Z',
  restart:
    'M8 2.5c1.7 0 3.1.7 4.1 1.9L13.5 3v4.2H9.3L11 5.5A4 4 0 1 0 12 8h1.5A5.5 5.5 0 1 1 8 2.5ZM6.2 6.2h3.6v3.6H6.2V6.2Z'
} as const;

export type IconName = keyof typeof PATHS;

/** An icon that says nothing to a screen reader, because words always stand beside it. */
export function makeIcon(name: IconName): SVGSVGElement {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('aria-hidden', 'true');
  svg.setAttribute('class', 'jp-ivy-icon');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('fill', 'currentColor');
  path.setAttribute('fill-rule', 'evenodd');
  path.setAttribute('d', PATHS[name]);
  svg.append(path);
  return svg;
}

/** Put another icon in the place of an element's first child, when it is another one. */
export function setIcon(node: HTMLElement, name: IconName): void {
  if (node.dataset['icon'] !== name) {
    node.dataset['icon'] = name;
    node.replaceChildren(makeIcon(name));
  }
}
