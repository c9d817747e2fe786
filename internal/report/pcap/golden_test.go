package pcap_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/job/run"
	"vnic.dev/vnic/internal/report/pcap"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

func TestGoldenCaptures(t *testing.T) {
	got := make(map[string]string)
	for name, change := range map[string]func(*run.Options, *pcap.Options){
		"devmem":  func(*run.Options, *pcap.Options) {},
		"copy":    func(o *run.Options, p *pcap.Options) { o.Modes, p.Payload, p.Ends = []string{transfer.Copy}, 100, true },
		"bounced": func(o *run.Options, p *pcap.Options) { o.P2P, o.Family, p.Ends = false, 6, true },
	} {
		o := run.Defaults()
		o.Size, o.Modes, o.GPUMemory, o.Seed, o.InProc = 512<<10, o.Modes[:1], 32<<20, 1, true
		o.Log = slog.New(slog.DiscardHandler)
		what := pcap.Options{File: filepath.Join(t.TempDir(), "run.pcapng")}
		change(&o, &what)
		p := testkit.Must(pcap.Start(what, func(format string, args ...any) { t.Errorf("note: "+format, args...) }))(t)
		o.Services = append(o.Services, p.Service)
		testkit.Must(run.Do(t.Context(), o))(t)
		if r := p.Report(); r.Packets == 0 || r.Missed != 0 || r.Error != "" {
			t.Fatalf("%s: %+v", name, r)
		}
		file := testkit.Must(os.ReadFile(what.File))(t)
		got[name] = structure(t, file)
	}
	golden.Check(t, "testdata/golden", got)
}

// variable has patterns of the parts of a comment that differ from run to run, and what structure writes for them.
var variable = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`0x[0-9a-f]+\+[0-9]+(, 0x[0-9a-f]+\+[0-9]+)*`), "PIECES"},
	{regexp.MustCompile(`\b[0-9]+\b`), "N"},
}

// last has parts of comments that structure leaves out: they occur only for frames under way when a guest ends.
var last = []string{"dropped: stopped", "dropped: stopped, queue N"}

// structure describes a pcapng file: section header, interfaces and statistics in their order; kinds of blocks;
// for each interface, sorted, its packets' options and the parts of their comments.
func structure(t *testing.T, file []byte) string {
	t.Helper()
	le := binary.LittleEndian
	var b strings.Builder
	var names []string
	kinds := ""
	packets := make(map[string]bool)
	for len(file) > 0 {
		kind, n := le.Uint32(file), le.Uint32(file[4:])
		body := file[8 : n-4]
		file = file[n:]
		switch kind {
		case 0x0a0d0d0a:
			kinds += "H"
			fmt.Fprintf(&b, "# section header\n%x\n%s\n", body[:16], optionTexts(body[16:], 4, 1, 3))
		case 1:
			kinds += "I"
			names = append(names, strings.TrimPrefix(optionTexts(body[8:], 2), " 2="))
			fmt.Fprintf(&b, "\n# interface %d\n%x\n%s\n", len(names)-1, body[:8], optionTexts(body[8:], 2, 3, 12, 9))
		case 6:
			if !strings.HasSuffix(kinds, "P") {
				kinds += "P"
			}
			about := names[le.Uint32(body)]
			options := body[20+(le.Uint32(body[12:])+3)&^3:]
			packets[about+": options "+optionCodes(options)+optionTexts(options, 2)] = true
			if !strings.Contains(optionTexts(options, 4), "=") {
				packets[about+": no packet was missed before"] = true
			}
			_, comment, _ := strings.Cut(strings.TrimSpace(optionTexts(options, 1)), "=")
			for _, v := range variable {
				comment = v.pattern.ReplaceAllString(comment, v.by)
			}
			for part := range strings.SplitSeq(strings.Trim(comment, `"`), "; ") {
				if !slices.Contains(last, part) {
					packets[about+": comment: "+part] = true
				}
			}
		case 5:
			kinds += "S"
			fmt.Fprintf(&b, "\n# statistics of interface %d: options %s\n", le.Uint32(body), optionCodes(body[12:]))
		default:
			t.Fatalf("block of type %#x", kind)
		}
	}
	fmt.Fprintf(&b, "\n# blocks: H section header, I interface, P packets, S statistics\n%s\n\n# packets\n", kinds)
	for _, line := range slices.Sorted(maps.Keys(packets)) {
		b.WriteString(line + "\n")
	}
	return b.String()
}

func eachOption(b []byte, do func(code uint16, value []byte)) {
	for len(b) >= 4 {
		n := binary.LittleEndian.Uint16(b[2:])
		do(binary.LittleEndian.Uint16(b), b[4:4+n])
		b = b[4+(n+3)&^3:]
	}
}

func optionCodes(b []byte) string {
	var codes []string
	eachOption(b, func(code uint16, _ []byte) { codes = append(codes, fmt.Sprint(code)) })
	return strings.Join(codes, " ")
}

func optionTexts(b []byte, codes ...uint16) (s string) {
	eachOption(b, func(code uint16, value []byte) {
		if slices.Contains(codes, code) {
			s += fmt.Sprintf(" %d=%q", code, value)
		}
	})
	return s
}
