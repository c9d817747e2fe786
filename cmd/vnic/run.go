package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"strings"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/cmd/vnic/internal/run"
	"vnic.dev/vnic/guest-images/transfer"
)

func runCommand() *cobra.Command {
	var (
		size, memory, gpuMemory  = bytesFlag(256 << 20), bytesFlag(512 << 20), bytesFlag(512 << 20)
		loss, reorder            fraction
		mode, family, p2p, guest = "both", 4, "on", "qemu"
		asJSON, verbose          bool
		profile                  string
		o                        run.Options
	)
	c := &cobra.Command{
		Use:   "run",
		Short: "Send a buffer from the GPU of one guest to the GPU of another, and prove where its bytes went",
		Example: `  vnic run                          two QEMU guests, 256 MiB, devmem against copy
  vnic run --size 64M --loss 1%     over a link that loses packets
  vnic run --p2p off                the negative control: payload bounced through host memory
  vnic run --audit                  also search both guests' RAM for pieces of the payload
  vnic run --guest inproc           the same job without QEMU, in seconds
  vnic run --json                   one JSON object on stdout`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("seed") {
				o.Seed = uint64(rand.Uint32())
			}
			o.Size, o.Memory, o.GPUMemory = uint64(size), uint64(memory), uint64(gpuMemory)
			o.Loss, o.Reorder, o.Family = float64(loss), float64(reorder), family
			switch mode {
			case "both":
				o.Modes = []string{transfer.Devmem, transfer.Copy}
			case transfer.Devmem, transfer.Copy:
				o.Modes = []string{mode}
			default:
				return usagef("--mode %s: devmem, copy or both", mode)
			}
			switch p2p {
			case "on", "off":
				o.P2P = p2p == "on"
			default:
				return usagef("--p2p %s: on or off", p2p)
			}
			switch guest {
			case "qemu", "inproc":
				o.InProc = guest == "inproc"
			default:
				return usagef("--guest %s: qemu or inproc", guest)
			}
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			level := slog.LevelError
			if verbose {
				level = slog.LevelDebug
			}
			ui := newUI(os.Stderr, !asJSON || verbose)
			o.Log = slog.New(slog.NewTextHandler(ui, &slog.HandlerOptions{Level: level}))
			o.Fetch.Log = o.Log
			o.Fetch.Progress = ui.fetch
			o.Stage, o.Progress, o.Note = ui.stage, ui.progress, ui.note
			stop, err := startProfile(profile)
			if err != nil {
				return err
			}
			rep, err := run.Do(c.Context(), o)
			stop()
			ui.done()
			if rep != nil {
				if perr := printReport(rep, asJSON); perr != nil {
					return errors.Join(err, perr)
				}
			}
			return err
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.Var(&size, "size", "bytes to send in each mode (K, M, G); more than fits GPU memory runs in rounds")
	f.StringVar(&mode, "mode", mode, "devmem, copy or both")
	f.StringVar(&guest, "guest", guest, "qemu, or inproc: guests in this process, over the same vhost-user socket")
	f.IntVar(&o.MTU, "mtu", 1500, "MTU of the link")
	f.Var(&loss, "loss", "part of the segments that the link loses, as 0.01 or 1%")
	f.Var(&reorder, "reorder", "part of the segments that the link holds back")
	f.IntVar(&family, "family", family, "IP version, 4 or 6")
	f.StringVar(&p2p, "p2p", p2p, "on, or off: the NICs cannot reach the GPUs, payload goes through host memory")
	f.BoolVar(&o.Audit, "audit", false, "scan each guest's RAM for 64-byte pieces of the payload")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of payload, loss and reordering (default: random, printed)")
	f.Var(&memory, "memory", "RAM of each guest")
	f.Var(&gpuMemory, "gpu-memory", "memory of each GPU, a power of two")
	f.StringVar(&o.Fetch.QEMU, "qemu", "", "QEMU to use (default: the system's if new enough, else fetched)")
	f.StringVar(&o.Fetch.Kernel, "kernel", "", "guest kernel, a bzImage (default: fetched)")
	f.StringVar(&o.Fetch.Modules, "modules", "", "directory with the modules of --kernel")
	f.StringVar(&o.Fetch.CacheDir, "cache", "", "cache directory (default: $VNIC_CACHE, $XDG_CACHE_HOME/vnic or ~/.cache/vnic)")
	f.StringVar(&o.Fetch.Mirror, "mirror", "", "Debian mirror to fetch from (default: this machine's)")
	f.StringVar(&o.Fetch.Keyring, "keyring", "", "keyring that signs the mirror")
	f.BoolVar(&o.Fetch.Offline, "offline", false, "use what is in the cache, fetch nothing")
	f.BoolVar(&o.Keep, "keep", false, "keep the guests' consoles in the current directory")
	f.BoolVar(&asJSON, "json", false, "print one JSON object (schema: vnic run --json-schema)")
	f.BoolVarP(&verbose, "verbose", "v", false, "log what happens")
	f.StringVar(&o.Pause, "pause-at", "", "stop at a stage until interrupted (for tests): "+strings.Join(run.Stages, ", "))
	f.IntVar(&o.StallSecs, "stall", 60, "seconds without progress after which a transfer fails")
	f.StringVar(&profile, "cpuprofile", "", "write a CPU profile of this process")
	_ = f.MarkHidden("cpuprofile")
	_ = f.MarkHidden("pause-at")
	_ = f.MarkHidden("stall")
	schema := f.Bool("json-schema", false, "print the schema of --json")
	inner := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if *schema {
			_, err := fmt.Print(run.Schema)
			return err
		}
		return inner(c, args)
	}
	return c
}

func printReport(rep *run.Report, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(rep)
	}
	return rep.Table(os.Stdout)
}

func startProfile(name string) (stop func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { pprof.StopCPUProfile(); _ = f.Close() }, nil
}
