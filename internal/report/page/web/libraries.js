// What the scripts of vendor/ give, by the names that modules use.
export const { h, render } = preact;
export const { useState, useEffect, useRef, useMemo } = preactHooks;
export const html = htm.bind(h);
