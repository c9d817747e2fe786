// Package layers has the test that holds the layers of this module: which package may import which
// of ours (layers.txt), and which files may import unsafe. It is closed by default: a package that
// the table does not name may import nothing of ours.
package layers
