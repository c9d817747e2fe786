package sabotage

import (
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
)

// Device models, as package lab names them.
const (
	virtio = "virtio"
	gve    = "gve"
)

// Fault is one fault, with the tests that detect it.
type Fault struct {
	Name  string // one or two words joined by a hyphen
	Class string // the class of the fault
	What  string // what the NIC does wrong, one clause
	Only  string // the only device model with the fault; "": both have it
	Every uint32 // default of occasions for each hit
	Case  string // case of internal/nic/nictest's suite that fails with it
	// Kernel is the program and case of Linux's tools/testing/selftests/drivers/net that fails with
	// the fault and passes without it (test/40-sabotage.sh); "": none does, and Why has the reason.
	// On is the device model whose NIC shows this; "": both.
	Kernel, On, Why string
	With            string // flags that `vnic selftest` needs for that case to have frames for the fault; "": none
	// RunVirtio and RunGVE are the outcomes of `vnic run --nic virtio` and `--nic gve` with the
	// fault.
	RunVirtio, RunGVE Outcome

	install func(*nic.Sabotage)
}

// Outcome is the outcome of a `vnic run` with a fault.
type Outcome uint8

// Outcomes.
const (
	Passes  Outcome = iota // the fault breaks nothing that a run proves
	Fails                  // the proof or a stage of it fails
	Missing                // the model does not have the fault
	Crawls                 // it goes on, so slowly that nobody waited for its end
)

func (o Outcome) String() string { return [...]string{"passes", "fails", "-", "crawls"}[o] }

// faults are sorted by class, as in tables.
var faults = []Fault{
	{
		Name: "payload-place", Class: "payload place", Every: 1,
		What: "TCP and UDP payload lies one byte behind its place, the last byte first; its checksum is said to be good",
		Case: "SplitSweep", Kernel: "ping.py:test_default_v4",
		RunVirtio: Fails, RunGVE: Fails,
		install: onReceive(damage{fits: hasPayload, after: misplace}),
	},
	{
		Name: "header-place", Class: "header place", Every: 1,
		What: "the header buffer of a split frame has 2 bytes of the payload behind the headers",
		Case: "SplitSweep", Kernel: "hw/devmem.py:check_rx_hds", On: gve,
		RunVirtio: Fails, RunGVE: Fails,
		install: onReceive(damage{fits: splits, before: splitLate}),
	},
	{
		Name: "hash", Class: "hash", Every: 1,
		What: "RSS hashes are computed with a key that is turned by one byte",
		Case: "HashPlacesFlows", Kernel: "hw/toeplitz.py:test.tcp_ipv4", On: gve,
		install: turnKey,
	},
	{
		Name: "checksum-in", Class: "checksum in", Every: 1,
		What: "checksums of TCP and UDP that are to be verified are said to be good",
		Case: "BadChecksumJoinsNoMerge", Kernel: "hw/csum.py:ipv4_rx_tcp_invalid",
		install: onReceive(damage{fits: unverified, before: vouch}),
	},
	{
		Name: "checksum-out", Class: "checksum out", Every: 1,
		What: "checksums that the driver leaves to the NIC are not completed, but for those of GSO packets",
		Case: "ChecksumsLeaveComplete", Kernel: "hw/csum.py:ipv4_tx_udp_csum_offload", On: gve,
		RunVirtio: Fails, RunGVE: Fails,
		install: skipSums,
	},
	{
		Name: "rule", Class: "rule", Every: 1,
		What: "the frames of a flow rule go to the queue behind its own",
		Case: "RuleBeatsRSS", Kernel: "hw/ntuple.py:queue.tcp4.dst_port", On: gve,
		RunVirtio: Fails, RunGVE: Fails,
		install: shiftRules,
	},
	{
		Name: "rss-table", Class: "RSS table", Every: 1,
		What: "each second entry of an RSS table of several is taken to be the next queue",
		Case: "RSSExcludes", Kernel: "hw/toeplitz.py:test.rss_tcp_ipv4", On: gve,
		install: shiftTable,
	},
	{
		Name: "order", Class: "generation or order", Every: 1,
		What: "two frames of a flow that follow one another leave in the other order, if they leave in one batch",
		Case: "MergesKeepOrder", Why: "a test would have to have two frames in one batch; TCP puts them in order again",
		install: swapFrames,
	},
	{
		Name: "generation", Class: "generation or order", Only: gve, Every: 40, RunVirtio: Missing, RunGVE: Fails,
		What: "a receive completion keeps the generation of the lap before: its driver waits there for ever",
		Case: "DriverIsCalled", Kernel: "ping.py:test_default_v4", On: gve,
		install: ring(nic.RingGeneration),
	},
	{
		Name: "completion", Class: "missing completion", Every: 1,
		What: "a frame that is sent does not come back to its driver",
		Case: "FramesComeBack", Kernel: "ping.py:test_default_v4",
		RunVirtio: Fails, RunGVE: Fails,
		install: dropCompletions,
	},
	{
		Name: "end", Class: "EOP", Every: 1,
		What: "a frame in several buffers ends with the first one: gve's end-of-packet bit, virtio's num_buffers",
		Case: "ShortageIsWholeFrames", Kernel: "ping.py:test_xdp_generic_mb", On: gve, With: "--mtu 9000",
		RunVirtio: Fails, RunGVE: Crawls,
		install: ring(nic.RingEnd),
	},
	{
		Name: "length", Class: "length", Every: 1,
		What: "a TCP or UDP frame comes with 4 bytes behind it, as if its check sequence were a part of it",
		Case: "SplitSweep", Kernel: "gro.py:test.sw_ipv4_data_same", On: gve,
		install: onReceive(damage{fits: fitsLonger, before: lengthen}),
	},
	{
		Name: "cut", Class: "cut", Every: 1,
		What: "a TCP or UDP frame comes without its last 4 bytes, as if its check sequence were taken off twice",
		Case: "SplitSweep", Kernel: "hw/csum.py:ipv4_rx_udp",
		RunVirtio: Fails, RunGVE: Fails,
		install: onReceive(damage{fits: hasPayload, before: shorten}),
	},
	{
		Name: "segmentation", Class: "segmentation", Every: 1,
		What: "the first two segments of a GSO packet have one another's payload",
		Case: "SegmentsForWhoLacksTSO", Kernel: "ping.py:test_default_v4",
		RunVirtio: Fails, RunGVE: Fails,
		install: mixSegments,
	},
	{
		Name: "stats", Class: "stats", Every: 1,
		What: "each frame counts as a byte more of payload in host memory than it has",
		Case: "Meters", Why: "the kernel's tests read what its drivers count; the NIC's own counters are vnic's",
		RunVirtio: Fails, RunGVE: Fails,
		install: onReceive(damage{fits: anyFrame, after: miscount}),
	},
	{
		Name: "interrupt", Class: "interrupt", Every: 2,
		What: "a driver is not called for what it received",
		Case: "DriverIsCalled", Kernel: "ping.py:test_default_v4", On: gve,
		RunVirtio: Fails, RunGVE: Crawls,
		install: dropCalls,
	},
	{
		Name: "after-destroy", Class: "use after destroy", Every: 1,
		What: "a receive queue that is gone writes to the last buffer that it had, with each frame that comes for it",
		Case: "StoppedQueueIsLeftAlone",
		Why: "the buffer is the kernel's again, and no test looks at what it became; a kernel that checks free pages may " +
			"tell",
		install: writeAfterStop,
	},
}

func anyFrame(f *nic.Frame) bool { return f.PayloadLen > 0 && f.Meta.Headers.Class == splitter.TCP }

func ring(f nic.RingFault) func(*nic.Sabotage) { return func(s *nic.Sabotage) { s.Ring = f } }
