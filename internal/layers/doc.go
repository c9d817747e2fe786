// Package layers tests which packages of this module a package may import (layers.txt), and which files may
// import unsafe.
package layers
