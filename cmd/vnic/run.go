package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/job/run"
	"vnic.dev/vnic/internal/live"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/nic/sabotage"
	"vnic.dev/vnic/internal/report/plot"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/spare"
)

type runFlags struct {
	mode, p2p                 string
	guests                    []string
	asJSON, verbose, schema   bool
	profile, labName, picture string
	live                      live.Command
	options                   run.Options
}

func runCommand() *cobra.Command {
	x := runFlags{mode: "both", p2p: "on", guests: []string{"qemu"}, live: live.New("run"), options: run.Defaults()}
	c := &cobra.Command{
		Use:   "run",
		Short: "Send a buffer from the GPU of one guest to the GPU of another, and prove where its bytes went",
		Long: `Send a buffer from the GPU of one guest to the GPU of another, and prove where its bytes went. In mode
devmem the NICs read and write GPU memory; in mode copy payload goes through guest RAM, as without Device
Memory TCP.`,
		Example: `  vnic run                          two QEMU guests, 256 MiB, devmem against copy
  vnic run --nic gve                the same, but driver and TCP stack are the kernel's
  vnic run --nic gve --iommu        with addresses that the guests' IOMMUs translate
  vnic run --nic gve,virtio         from the kernel's stack to ours
  vnic run --size 64M --loss 1%     over a link that loses packets
  vnic run --p2p off                the negative control: payload bounced through host memory
  vnic run --audit                  also search both guests' RAM for pieces of the payload
  vnic run --guest inproc           the same job without QEMU, in seconds
  vnic run --pcap run.pcapng        every packet as tshark reads it, with where its payload lay
  vnic run --lab two.yaml --guest a --seed 7   guest a of a lab file; the other one is on another host
  vnic run --lab a3-high --bidir    4 NICs and 8 GPUs a guest, in both directions
  vnic run --plot run.svg           a picture: rates over time; with --lab, loads of links
  vnic run --json                   one JSON object on stdout`,
		Args: cobra.NoArgs,
		RunE: x.run,
	}
	x.flags(c.Flags())
	return c
}

func (x *runFlags) flags(f *pflag.FlagSet) {
	o, l := &x.options, &x.live
	f.Var((*bytesFlag)(&o.Size), "size", "bytes to send in each mode (K, M, G); more than fits GPU memory runs in rounds")
	f.StringVar(&x.mode, "mode", x.mode, "devmem, copy or both")
	f.StringVar(&o.NIC, "nic", o.NIC,
		"virtio: our driver and TCP stack in the guests; gve: the kernel's, which needs QEMU "+assets.MinVFIOUser+
			"; or two, with a comma: the sender's and the receiver's; with --lab, of all NICs in place of what it says")
	f.StringSliceVar(&x.guests, "guest", x.guests, "qemu, or inproc: guests in this process, over the same vhost-user "+
		"socket; and with --lab the name of one of its guests: that alone runs here, and the other one on another host "+
		"(docs/uplinks.md), as --guest a or --guest a,inproc")
	labFlag(f, &x.labName)
	uplinkFlag(f, &l.Uplinks)
	f.IntVar(&o.PeerSecs, "peer-wait", o.PeerSecs, "with a guest's name: seconds that the other host has to come")
	f.IntVar(&o.Rails, "rails", 0,
		"NICs of each guest, each with a GPU, that transfer at the same time (default with --lab: all)")
	f.BoolVar(&o.Bidir, "bidir", false, "each rail in both directions")
	f.StringVar(&o.Scale, "scale", "",
		"how many times slower than the lab file says its links are, or auto: so that they are what limits the transfer")
	f.BoolVar(&o.MustShare, "check", false, "with --scale: fail where something else than links was the limit")
	nicFlags(f, &o.NICOptions)
	impairFlags(f, &o.Impairment)
	f.IntVar(&o.Family, "family", o.Family, "IP version, 4 or 6")
	f.IntVar(&o.BindQueues, "bind-queues", o.BindQueues, "receive queues that are bound to GPU memory")
	f.Uint64Var(&o.HoldTokens, "hold-tokens", 0,
		"tokens that the receiver keeps until nothing comes any more (exhaustion test)")
	sandboxFlag(f, &l.Sandbox)
	f.StringVar(&x.p2p, "p2p", x.p2p, "on, or off: the NICs cannot reach the GPUs, payload goes through host memory")
	f.BoolVar(&o.Audit, "audit", false, "scan each guest's RAM for 64-byte pieces of the payload")
	f.StringVar(&o.Sabotage, "sabotage", "",
		"make the NICs with a fault, to see who sees it: a name, with /N for 1 frame of N, or list (docs/sabotage.md)")
	f.StringVar(&o.Digest, "digest", o.Digest,
		"pieces: the SHA-256 of the SHA-256s of each MiB, by the GPUs' engines; or sha256, of all bytes, by the host: slower")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of payload, loss and reordering (default: random, printed)")
	f.Var((*bytesFlag)(&o.Memory), "memory", "RAM of each guest")
	f.Var((*bytesFlag)(&o.GPUMemory), "gpu-memory", "memory of each GPU, a power of two")
	gpuDriverFlag(f, &o.GPUDriver, &o.Fetch)
	iommuFlag(f, &o.IOMMU)
	machineFlags(f, &o.Accel)
	timeoutFlag(f, &o.Timeout)
	sourceFlags(f, &o.Fetch)
	f.BoolVar(&o.Keep, "keep", false, "keep the guests' consoles and the NICs' counters, in ./vnic-run-SEED")
	l.Dump.Flags(f)
	f.StringVar(&x.picture, "plot", "", "draw rates over time, and what links carried, to this file, .svg or .png")
	f.BoolVar(&x.asJSON, "json", false, "print one JSON object (schema: vnic run --json-schema)")
	metricsFlag(f, &l.Show)
	l.Page.Flags(f)
	f.BoolVarP(&x.verbose, "verbose", "v", false, "log what happens")
	f.StringVar(&o.Pause, "pause-at", "", "stop at a stage until interrupted (for tests): "+strings.Join(run.Stages, ", "))
	f.IntVar(&o.StallSecs, "stall", o.StallSecs, "seconds without progress after which a transfer fails")
	f.StringVar(&x.profile, "cpuprofile", "", "write a CPU profile of this process")
	_ = f.MarkHidden("cpuprofile")
	_ = f.MarkHidden("pause-at")
	_ = f.MarkHidden("stall")
	f.BoolVar(&x.schema, "json-schema", false, "print the schema of --json")
}

func (x *runFlags) run(c *cobra.Command, _ []string) error {
	o, l := &x.options, &x.live
	if x.schema {
		_, err := fmt.Fprint(c.OutOrStdout(), run.Schema)
		return err
	}
	if o.Sabotage == "list" {
		_, err := fmt.Fprint(c.OutOrStdout(), sabotage.Table())
		return err
	}
	if err := x.takeOptions(c); err != nil {
		return err
	}
	format, perr := pictureFormat(c, x.picture)
	if err := errors.Join(l.Check(), o.Check(), perr); err != nil {
		return misuse(c, err)
	}
	out, err := results(c, &l.Dump, x.asJSON)
	if err != nil {
		return err
	}
	ui := show.New(c.ErrOrStderr(), x.asJSON && !x.verbose)
	defer ui.Done()
	o.Log = ui.Fetching(&o.Fetch, x.verbose)
	o.Stage, o.Progress, o.Note = ui.Stage, ui.Progress, ui.Note
	if x.profile != "" && !c.Flags().Changed("sandbox") {
		l.Sandbox = broker.Off // the profiler makes timers for new threads, which the sandbox refuses
	}
	l.More = broker.Terminal
	drawn := l.File("plot", x.picture)
	if drawn != nil {
		o.Recorder = &run.Recorder{Name: labTitle(x.labName)}
	}
	l.Uplinks = nil
	if o.Half == "" {
		l.Uplinks = o.Uplinks
	}
	return l.Run(c, &o.Common, o.BrokerConfig, func(ctx context.Context) error {
		if o.Half != "" && o.Broker != nil {
			o.Keeper = o.Broker.Keep
		}
		stop, err := startProfile(x.profile)
		if err != nil {
			return err
		}
		rep, err := run.Do(ctx, *o)
		stop()
		ui.Done()
		if rep == nil {
			return err
		}
		rep.Pcap = l.Capture.Report()
		if perr := printReport(out, rep, x.asJSON); perr != nil {
			return errors.Join(err, perr)
		}
		if drawn == nil {
			return err
		}
		var b bytes.Buffer
		if perr := o.Recorder.Picture(rep).Write(&b, format); perr != nil {
			return errors.Join(err, fmt.Errorf("--plot %w", perr))
		}
		return errors.Join(err, drawn.Commit(b.Bytes()))
	})
}

func (x *runFlags) takeOptions(c *cobra.Command) error {
	o := &x.options
	if c.Flags().Changed("sabotage") && o.Sabotage == "" {
		o.Sabotage = "''" // --sabotage was given with an empty name: '' is no fault's name, "" would mean none
	}
	if !c.Flags().Changed("seed") {
		o.Seed = uint64(rand.Uint32())
	}
	if x.mode != "both" {
		o.Modes = []string{x.mode}
	}
	if o.P2P = x.p2p == "on"; !o.P2P && x.p2p != "off" {
		return usagef(c, "--p2p %s: on or off", x.p2p)
	}
	if err := setGuests(o, x.guests); err != nil {
		return misuse(c, err)
	}
	if err := driverNeedsKernel(c, o.GPUDriver, o.InProc); err != nil {
		return err
	}
	o.Uplinks = x.live.Uplinks
	if x.labName != "" {
		return takeLab(c, o, x.labName)
	}
	return nil
}

func setGuests(o *run.Options, words []string) error {
	guest := ""
	for _, w := range words {
		to := &o.Half
		if w == "qemu" || w == "inproc" {
			to = &guest
		}
		if w == "" || *to != "" {
			return fmt.Errorf("--guest %s: one of qemu and inproc, and one guest of a lab file at most",
				strings.Join(words, ","))
		}
		*to = w
	}
	o.InProc = guest == "inproc"
	return nil
}

// takeLab reads a lab file, and sets the options for its guests. If --guest names one of them, it requires a seed, by
// --seed or in the file.
func takeLab(c *cobra.Command, o *run.Options, name string) error {
	refused := []string{"p2p"}
	if o.Half == "" {
		refused = append(refused, "uplink")
	} else {
		spare.JobBegins() // the other host would not repeat its part
	}
	l, err := loadLab(c, name, o.LabMemory, refused...)
	if err != nil {
		return err
	}
	setDrivers(l, o.GPUDriver, o.IOMMU)
	if c.Flags().Changed("nic") {
		if err := o.Remodel(l); err != nil {
			return misuse(c, err)
		}
		if err := enough(name, o.LabMemory(l)); err != nil {
			return err
		}
	}
	if o.Half != "" && !c.Flags().Changed("seed") {
		if l.Seed == nil {
			return usagef(c, "--guest %s: both hosts need the same --seed, or a seed in the lab file", o.Half)
		}
		o.Seed = *l.Seed
	}
	sow(l, o.Seed)
	if len(o.Uplinks) == 0 { // --uplink replaces the file's uplinks
		o.Uplinks = l.UplinksOf(o.Half)
	}
	o.Take(l, o.Rails)
	return nil
}

func sourceFlags(f *pflag.FlagSet, o *assets.Options) {
	placeFlags(f, o)
	offlineFlag(f, o)
}

func offlineFlag(f *pflag.FlagSet, o *assets.Options) {
	f.BoolVar(&o.Offline, "offline", false, "use what is in the cache, fetch nothing")
}

func placeFlags(f *pflag.FlagSet, o *assets.Options) {
	f.StringVar(&o.QEMU, "qemu", "", "QEMU to use ($"+assets.EnvQEMU+"; else the system's if new enough, else fetched)")
	kernelFlags(f, o)
}

func kernelFlags(f *pflag.FlagSet, o *assets.Options) {
	f.StringVar(&o.Kernel, "kernel", "", "guest kernel, a bzImage ($"+assets.EnvKernel+"; else fetched)")
	f.StringVar(&o.Modules, "modules", "", "directory with the modules of --kernel ($"+assets.EnvModules+")")
	mirrorFlags(f, o)
}

func mirrorFlags(f *pflag.FlagSet, o *assets.Options) {
	cacheFlag(f, &o.CacheDir)
	f.StringVar(&o.Mirror, "mirror", "", "Debian mirror to fetch from ($"+assets.EnvMirror+"; else this machine's)")
	f.StringVar(&o.Keyring, "keyring", "", "keyring that signs the mirror ($"+assets.EnvKeyring+"; else Debian's)")
}

func printReport(w io.Writer, rep *run.Report, asJSON bool) error {
	if asJSON {
		return show.JSON(w, rep)
	}
	var table strings.Builder
	if err := show.Text(&table, rep.Table); err != nil {
		return err
	}
	_, err := io.WriteString(w, strings.NewReplacer("MISMATCH", show.Red(w, "MISMATCH"), "  match",
		"  "+show.Green(w, "match")).Replace(table.String()))
	return err
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

// pictureFormat returns the format of --plot's file; "": no picture.
func pictureFormat(c *cobra.Command, file string) (format string, err error) {
	if c.Flags().Changed("plot") {
		if format, err = plot.Format(file); err != nil {
			err = fmt.Errorf("--plot %w", err)
		}
	}
	return format, err
}

func labTitle(name string) string {
	if name == "" {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
}
