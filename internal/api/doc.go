// Package api lists the packages of this module that are API (packages.txt), and has the tests of the
// README's promises under "Stability".
package api
