package wire

import "vnic.dev/vnic/dma"

// Worker is a sending goroutine's own: the copier, and the scratch that the wire works in. One goroutine uses it at a
// time.
type Worker struct {
	Copier *dma.Copier
}

// NewWorker makes a Worker with all its scratch.
func NewWorker() *Worker { return &Worker{Copier: dma.NewCopier()} }
