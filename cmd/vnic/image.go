package main

import (
	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/job/boot"
	"vnic.dev/vnic/internal/job/image"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report/show"
)

func imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Write guest images, and the guests' tools, to files for QEMUs and guests of your own",
		Long: `Write what guests of vnic consist of to files: a kernel and an initrd to boot by a QEMU of your own, on a
NIC of 'vnic serve'; or the tools alone, for a guest or a root file system of your own.`,
		Example: `  vnic image build                     ./guest: a kernel and an initrd, with a shell
  vnic image build -- ./test --all     the same that runs a program of yours, and powers off
  vnic image export                    the tools: ./devmem, one static program`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(imageBuildCommand(), imageExportCommand())
	return c
}

func imageBuildCommand() *cobra.Command {
	var (
		verbose bool
		o       = image.BuildOptions{Guest: boot.Options{Memory: 512 << 20}}
	)
	c := &cobra.Command{
		Use:   "build [flags] [-- COMMAND ARGS...]",
		Short: "Write a guest image: kernel and initrd for a QEMU of your own",
		Long: `Write a guest image for a QEMU of your own, on a NIC of 'vnic serve': a directory with kernel, initrd,
append (the kernel's command line) and a README with the flags for QEMU. The guest is that of 'vnic boot':
the kernel drives eth0, and the program comes from this machine with its libraries. It runs on the serial
line, and with its end the guest powers off; without a command there is a shell. Besides there are u-root's
commands, in /bbin. eth0 gets its address by
DHCP from vnic serve's gateway; the guest at port0 is guest0, and so on.

Programs for guests of vnic boot run as they are: devmem, those that use the Go package
vnic.dev/vnic/guest, and on gve C programs that get GPU memory at $VNIC_GPU. $VNIC_INDEX is the port's
number; how many guests there are you tell them by --env VNIC_GUESTS=N. On virtio they drive the NIC
themselves: eth0 is gone when the first of them starts, unless QEMU gives the guest a second NIC.

The same flags, files and kernel give the same image, byte for byte.`,
		Example: `  vnic image build                            to ./guest, with a shell
  vnic image build --nic gve -o out           for a gVNIC: the kernel's own devmem TCP
  vnic image build --copy data:/data -- ./test /data
  vnic image build --kernel bzImage --modules lib
  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic.sock --image guest     prints the QEMU that boots it`,
		Args: programArgs,
		RunE: func(c *cobra.Command, args []string) error {
			g := &o.Guest
			g.Command, g.Guests, g.CPUs, g.MTU = args, 1, 1, 1500
			if o.Dir == "" {
				return usagef(c, "-o: no name of a directory")
			}
			if err := g.Check(); err != nil {
				return misuse(c, err)
			}
			ui := show.New(c.ErrOrStderr(), false)
			defer ui.Done()
			g.Log, g.Note = ui.Fetching(&g.Fetch, verbose), ui.Note
			return misuseIf[*boot.UseError](c, image.Build(c.Context(), o, c.OutOrStdout()))
		},
	}
	f := c.Flags()
	f.StringVarP(&o.Dir, "output", "o", image.DefaultDir, "directory to make")
	f.BoolVar(&o.Force, "force", false, "replace it if there is one")
	f.StringVar(&o.Guest.NIC, "nic", lab.Virtio, "virtio or gve, as of vnic serve")
	xdpFlag(f, &o.Guest.XDP)
	gpuDriverFlag(f, &o.Guest.GPUDriver, &o.Guest.Fetch)
	f.StringArrayVar(&o.Guest.Copies, "copy", nil,
		"HOST:GUEST, a file or directory for the guest, libraries included; HOST alone: to the same place")
	f.StringArrayVar(&o.Guest.Env, "env", nil, "NAME=VALUE for the program's environment; NAME alone: its value here")
	toolsFlag(f, &o.Guest.Tools)
	f.Var((*bytesFlag)(&o.Guest.Memory), "memory",
		"RAM that the guest will have at least: files may take up a third of it")
	f.StringVar(&o.Guest.Append, "append", "", "words for the kernel's command line")
	kernelFlags(f, &o.Guest.Fetch)
	offlineFlag(f, &o.Guest.Fetch)
	f.BoolVarP(&verbose, "verbose", "v", false, "log what happens")
	return c
}

func imageExportCommand() *cobra.Command {
	var list bool
	var o image.ExportOptions
	c := &cobra.Command{
		Use:   "export",
		Short: "Write the guests' tools: one static program, for guests of your own",
		Long: `Write the guests' tools: one static program for Linux on x86-64, to be copied into a guest or a root file
system of your own. It is the tool that it is called by: devmem, netcat for device memory TCP; called by
another name, the first argument says which: 'devmem', or 'gpusocket', which gives GPU memory to programs
in any language.

In the guest, devmem takes a NIC of 'vnic serve' and the GPU beside it. On virtio it drives the NIC itself
and takes it from the kernel's driver: give the guest another NIC (or eth0 is gone) and the module
uio_pci_generic. On gve it uses the kernel's own devmem TCP, on the interface that -f names. It runs as
root; --list says what else it needs.`,
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
			case o.File == "-" && show.IsTerminal(out):
				return usagef(c, "-o -: a program is not for a terminal: redirect it, or name a file")
			}
			o.Stdout = out
			return image.Export(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVarP(&o.File, "output", "o", "devmem", "file to write; -: stdout")
	f.BoolVar(&o.Force, "force", false, "replace the file if there is one")
	f.BoolVar(&list, "list", false, "list the tools, and what they need in a guest")
	cacheFlag(f, &o.CacheDir)
	return c
}
