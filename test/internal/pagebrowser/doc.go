// Package pagebrowser has tests of the page (vnic run --http, --report) in a real browser. They have the build
// tag browser, and use the variables VNIC, CHROMIUM, CHROMIUM_LIBRARIES and SHOTS (a folder).
package pagebrowser
