package main

import (
	"github.com/spf13/cobra"

	"vnic.dev/vnic/cmd/vnic/internal/image"
	"vnic.dev/vnic/qemu"
)

func imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Write guest images, and the guests' tools, to files for QEMUs and guests of your own",
		Long: `Write what guests of vnic consist of to files: a kernel and an initrd to boot by a QEMU of your own, on a NIC of 'vnic serve';
or the tools alone, for a guest or a root file system of your own.`,
		Example: `  vnic image export                    the tools: ./devmem, one static program
  vnic image export --list             what they are, and what they need`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(imageExportCommand())
	return c
}

func imageExportCommand() *cobra.Command {
	var list bool
	var cache qemu.Options
	var o image.ExportOptions
	c := &cobra.Command{
		Use:   "export",
		Short: "Write the guests' tools: one static program, for guests of your own",
		Long: `Write the guests' tools: one static program for Linux on x86-64, to be copied into a guest or a root file system of your own.
It is the tool that it is called by: devmem, netcat for device memory TCP; called by another name, the first argument says which.

In the guest, devmem takes a NIC of 'vnic serve' and the GPU beside it. On virtio it drives the NIC itself and takes it from the
kernel's driver: give the guest another NIC (or eth0 is gone) and the module uio_pci_generic. On gve it uses the kernel's own
devmem TCP, on the interface that -f names. It runs as root; --list says what else it needs.`,
		Example: `  vnic image export                        to ./devmem
  vnic image export -o rootfs/bin/devmem   into a root file system
  vnic image export -o - | ssh guest 'cat > /bin/devmem; chmod +x /bin/devmem'
  vnic image export --list                 what it needs in the guest
  devmem recv -s 10.118.110.2 -p 5201 -v 7                                in one guest
  devmem send -s 10.118.110.2 -c 10.118.110.1 -p 5201 -v 7 -b 256M        in the other`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out := c.OutOrStdout()
			switch {
			case list:
				return image.WriteList(out)
			case o.File == "":
				return usagef(c, "-o: no name of a file")
			case o.File == "-" && isTerminal(out):
				return usagef(c, "-o -: a program is not for a terminal: redirect it, or name a file")
			}
			o.Stdout = out
			o.CacheDir = cache.CacheDir
			return image.Export(c.Context(), o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVarP(&o.File, "output", "o", "devmem", "file to write; -: stdout")
	f.BoolVar(&o.Force, "force", false, "replace the file if there is one")
	f.BoolVar(&list, "list", false, "list the tools, and what they need in a guest")
	cacheFlag(f, &cache)
	return c
}
