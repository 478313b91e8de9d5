// Elements are made here, and nowhere else. What they show comes from users, providers and machines, so
// it is text and never markup.

const unprintable = /[\p{C}\p{Zl}\p{Zp}]/gu;

// plain returns the text with escapes for characters that nobody sees, or that change the direction of
// others.
export function plain(text) {
  return String(text).replace(unprintable, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

// el returns an element with attributes and children: elements, or texts. A child that is null or
// undefined is left out, and so is an attribute that is false, null or undefined.
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  fill(element, ...children);
  return element;
}

// fill replaces the children of an element.
export function fill(element, ...children) {
  element.replaceChildren(...children
    .filter((child) => child !== null && child !== undefined)
    .map((child) => child instanceof Node ? child : document.createTextNode(plain(child))));
}

// say changes the text of an element, if it is another one: a screen reader reads what is changed.
export function say(element, text) {
  const shown = plain(text);
  if (element.textContent !== shown) {
    element.textContent = shown;
  }
}
