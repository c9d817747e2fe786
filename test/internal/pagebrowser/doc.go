// Package pagebrowser has tests of the page (vnic run --http, --report) in a real browser. They have the build
// tag browser, and take the program (VNIC), the browser (CHROMIUM, CHROMIUM_LIBRARIES) and the folder for
// screenshots (SHOTS) from the environment.
package pagebrowser
