// Package pagebrowser has tests of the page (vnic run --http, --report) in a real browser. They have the build
// tag browser, and use environment variables: VNIC and CHROMIUM are paths of the programs, CHROMIUM_LIBRARIES is the
// browser's LD_LIBRARY_PATH, and SHOTS is a folder for pictures of the page (if it is empty, the tests save none).
package pagebrowser
