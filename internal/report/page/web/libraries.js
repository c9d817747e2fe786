// The functions of the scripts in vendor/, under the names that modules import.
export const { h, render } = preact;
export const { useState, useEffect, useRef, useMemo } = preactHooks;
export const html = htm.bind(h);
