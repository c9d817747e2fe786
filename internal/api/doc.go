// Package api says which packages of this module are API (packages.txt), and has the tests that
// hold what the README promises of them under "Stability": an importer meets no type of another
// package of ours, each package says whether it is API, and the README names them. It is closed by
// default: a package that is not in the list is not API.
package api
