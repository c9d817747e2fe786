package main

import (
	"fmt"
	"os/exec"
	"slices"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/gpufd"
)

func gpuFDCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "gpu-fd SOCKET... -- COMMAND [ARG...]",
		Short: "Start a QEMU with the GPUs' memory of another user's vnic serve",
		Long: `Start a QEMU with the GPUs' memory of another user's vnic serve. 'vnic serve --socket-group NAME' has a socket
for each GPU, beside its port's, with ` + gpufd.Suffix +
			` at its end. From each SOCKET this gets a descriptor of the GPU's memory;
then COMMAND takes its place, and has them as descriptors 3, 4, and so on. In QEMU's arguments the first is
mem-path=/proc/self/fd/3, as vnic serve prints them.`,
		Example: `  vnic gpu-fd /run/vnic-a/net.sock.gpu -- qemu-system-x86_64 ...  what vnic serve of a group prints
  vnic gpu-fd a.gpu b.gpu -- ./start-qemu                         a script, for two GPUs: descriptors 3 and 4`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			sockets, command := args, []string(nil)
			if c.ArgsLenAtDash() == 0 {
				sockets, command = nil, args
			} else if i := slices.Index(args, "--"); i >= 0 {
				sockets, command = args[:i], args[i+1:]
			}
			if err := gpufd.Check(sockets, command); err != nil {
				return misuse(c, err)
			}
			program, err := exec.LookPath(command[0])
			if err != nil {
				return misuse(c, fmt.Errorf("the command: %w", err))
			}
			var fds []int
			for _, s := range sockets {
				fd, err := gpufd.Receive(c.Context(), s)
				if err != nil {
					return fmt.Errorf("gpu-fd: %w", err)
				}
				fds = append(fds, fd)
			}
			return fmt.Errorf("gpu-fd: %w", gpufd.Exec(program, command, fds))
		},
	}
	c.DisableFlagsInUseLine = true
	c.Flags().SetInterspersed(false) // flags behind the first SOCKET are not parsed
	return c
}
