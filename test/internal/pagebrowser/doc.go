// Package pagebrowser has tests of the page (vnic run --http, --report) in a real browser: they run
// a vnic, click and type, and check the page's content. They are built with the tag browser, and
// run by test/44-page.sh, which names the program (VNIC), the browser (CHROMIUM,
// CHROMIUM_LIBRARIES) and the folder for screenshots (SHOTS).
package pagebrowser
