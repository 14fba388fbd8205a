"use strict";
// Boxes of the texts in a picture, one for each line.
function pieces(chart) {
  const walker = document.createTreeWalker(chart, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, range = document.createRange();
    if (!node.textContent.trim() || node.parentElement.closest(".spoken")) continue;
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width && box.height) found.push([node.textContent, box]);
  }
  return found;
}

function lieOnEachOther(a, b) {
  return Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
}

// Of every picture, closed ones too: the pairs of texts that lie on each other, and texts on a dot.
function overlaps() {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const found = [];
  let count = 0;
  for (const chart of document.querySelectorAll(".plot, .forest, .heat, .beside, .histogram, .words")) {
    const texts = pieces(chart);
    texts.forEach(([words, box], at) => {
      for (const [other, otherBox] of texts.slice(at + 1)) if (lieOnEachOther(box, otherBox)) found.push([words, other]);
    });
    const inside = [...chart.querySelectorAll(".area .label")].flatMap(pieces);
    for (const dot of chart.querySelectorAll(".area .dot"))
      for (const [words, box] of inside) if (lieOnEachOther(box, dot.getBoundingClientRect())) found.push([words, "a dot"]);
    count += texts.length;
  }
  return { found, count };
}

// On a screen wide tables scroll in a box of their own; on paper nothing does.
function cutOff() {
  const isPaper = matchMedia("print").matches, root = document.documentElement, found = [];
  if (root.scrollWidth > root.clientWidth) found.push(`the page is ${root.scrollWidth} wide`);
  for (const element of document.querySelectorAll("main *")) {
    const box = element.getBoundingClientRect(), isWider = element.scrollWidth > element.clientWidth + 1;
    if (!box.width || element.closest(".spoken") || (!isPaper && element.closest(".scroll"))) continue;
    const words = `${element.tagName}.${element.className}: ${element.textContent.slice(0, 40)}`;
    if (box.right > root.clientWidth + 1 || box.left < -1) found.push(`out of the page: ${words}`);
    if (isPaper && isWider && getComputedStyle(element).overflowX !== "visible") found.push(`cut: ${words}`);
    if (isWider && element.matches("td:not(.track), th")) found.push(`out of its cell: ${words}`);
  }
  return found;
}
