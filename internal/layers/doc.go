// Package layers has the test of the layers of this module: which packages of the module a package
// may import (layers.txt), and which files may import unsafe. A package that the table does not name
// may import only the few packages of the module that every package may import.
package layers
