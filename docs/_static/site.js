// Code and tables that are wider than the page can be scrolled from the keyboard, in browsers that do not see to it themselves.
const reach = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const box of document.querySelectorAll(".highlight pre, .table-wrapper")) reach.observe(box);
