// The theme adds these elements after a page is shown. Each copy button's landmark gets its own name, and what scrolls
// sideways can be reached by keyboard.
new MutationObserver(() => {
  document.querySelectorAll(".md-code__nav").forEach((nav, at) => nav.setAttribute("aria-label", `Code block ${at + 1}`))
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> img[src$='.svg'])")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
  }
}).observe(document.body, {childList: true, subtree: true})
