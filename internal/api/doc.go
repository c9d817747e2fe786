// Package api lists the packages of this module that are API (packages.txt), and has tests of the README's
// section "Stability".
package api
