package image

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/devmemtool"
	"vnic.dev/vnic/internal/gpusocket"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/transfer"
)

// ExportOptions are the flags of `vnic image export`.
type ExportOptions struct {
	File     string // "-": Stdout
	Force    bool
	CacheDir string // "": assets.CacheDir's default
	Stdout   io.Writer
}

// Export writes the guests' tools, which are one program.
func Export(ctx context.Context, o ExportOptions) error {
	if o.File == "" {
		return errors.New("no name of a file")
	}
	if o.File != "-" {
		if err := replaceable(o.File, o.Force, fs.FileMode.IsRegular, "not a file"); err != nil {
			return err
		}
	}
	cache, err := assets.CacheDir(assets.Options{CacheDir: o.CacheDir})
	if _, here, _ := guestimages.FindProgram(cache); err != nil && !here {
		return err
	}
	program, err := guestimages.Program(ctx, cache)
	if err != nil {
		return err
	}
	if o.File == "-" {
		_, err := o.Stdout.Write(program)
		return err
	}
	return writeFile(o.File, o.Force, content{mode: 0o755, write: func(w io.Writer) error {
		_, err := w.Write(program)
		return err
	}})
}

// WriteList describes the tools, and what each needs in a guest.
func WriteList(w io.Writer) error {
	_, err := io.WriteString(w, devmemtool.Name+"    netcat for device memory TCP: devmem recv -h, devmem send -h\n"+
		"  needs: root; /proc, /sys and devtmpfs mounted; 2 MiB huge pages in the kernel (it takes what it needs)\n"+
		"  with a virtio NIC: modules uio and "+strings.Join(transfer.Modules, ", ")+
		"; a NIC that it takes from the kernel's driver, which does not get it back: the only one, or -f PCI-ADDRESS\n"+
		"  with a gve NIC: -f INTERFACE; module "+strings.Join(kernelnic.Modules, ", ")+
		"; a kernel with NET_DEVMEM, UDMABUF and MEMFD_CREATE (7.2 is tested), and on its command line: nokaslr "+
		kernelnic.KernelArgs+
		"; 64 MiB that are free on node 1: have all else use node 0 (numactl --membind=0)\n"+
		gpusocket.Name+"    GPU memory as dma-bufs, for programs in any language that use the kernel's devmem TCP: "+
		"gpusocket -h\n"+
		"  with a gve NIC: the same, and an interface's name\n")
	return err
}
