// Package pagebrowser has tests of the page (vnic run --http, --report) in a real browser: they run
// vnic, click and type, and check the page's content. They have the build tag browser.
// test/44-page.sh runs them, and names the program (VNIC), the browser (CHROMIUM,
// CHROMIUM_LIBRARIES) and the folder for screenshots (SHOTS).
package pagebrowser
