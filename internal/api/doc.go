// Package api lists the packages of this module that are API (packages.txt), and has the tests of
// the README's promises under "Stability": an importer of them meets no type of our other packages,
// each package's documentation states if it is API, and the README names them. A package that is
// not in the list is not API.
package api
