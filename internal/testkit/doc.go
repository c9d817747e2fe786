// Package testkit has helpers for tests. Of this module it imports only package scm, so that the tests of nearly all
// packages may use it.
package testkit
