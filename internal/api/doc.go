// Package api lists the packages of this module that are API (packages.txt), and has the tests of
// the README's promises under "Stability": the exported identifiers of API packages use no type of
// our other packages, the documentation of each package that others can import states whether it is
// API, and the README names the API packages. A package that is not in the list is not API.
package api
