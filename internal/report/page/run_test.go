package page_test

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/job/run"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report/page"
	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/testkit"
)

func TestPageOfARun(t *testing.T) {
	t.Setenv(stat.EnvDir, filepath.Join(t.TempDir(), "run"))
	counters := testkit.Must(stat.Start(stat.Options{Command: "run"}))(t)
	defer counters.Close()
	recorder := page.Record(counters.Page)
	s := testkit.Must(page.Serve("localhost:0", recorder, nil))(t)
	o := run.Defaults()
	o.Size, o.GPUMemory, o.InProc = 1<<20, 32<<20, true
	o.Log, o.Services = slog.New(slog.DiscardHandler), []lab.Service{counters.Watch}
	tr := &http.Transport{DisableKeepAlives: true}
	modes := 0
	o.Stage = func(step run.Step) {
		if step.Stage != "verify" { // all is sent, and the lab is still open
			return
		}
		modes++
		req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"events", nil))(t)
		resp, err := (&http.Client{Transport: tr}).Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if !sees(t, bufio.NewReader(resp.Body), modes == 1) {
			t.Errorf("the page does not see the flow of mode %d", modes)
		}
	}
	testkit.OK(t, testkit.Err(run.Do(t.Context(), o)))
	testkit.Equal(t, "modes", modes, 2)
	recorder.Close()
	s.Close()
	text := string(testkit.Must(recorder.Report())(t))
	if !recorder.Seen() || !strings.Contains(text, `"report":true`) || !strings.Contains(text, `"from":"10.118.110.1:`) {
		t.Error("the report does not have the flow")
	}
}

// sees reads up to 200 lines, and reports whether one is a state with two machines and a flow that has received 1 MiB,
// some of it in GPU memory if inGPU is set, else none.
func sees(t *testing.T, r *bufio.Reader, inGPU bool) bool {
	for range 200 {
		l, err := r.ReadString('\n')
		if err != nil {
			return false
		}
		data, ok := strings.CutPrefix(l, "data: ")
		if !ok {
			continue
		}
		var s struct {
			Page struct {
				Machines []stat.Machine `json:"machines"`
				Flows    *stat.Flows    `json:"flows"`
			} `json:"page"`
		}
		testkit.OK(t, json.Unmarshal([]byte(data), &s))
		if len(s.Page.Machines) != 2 || s.Page.Flows == nil {
			continue
		}
		for _, f := range s.Page.Flows.List {
			if len(f.RX) == 1 && f.RX[0].Payload() == 1<<20 && f.RX[0].GPU() > 0 == inGPU {
				return true
			}
		}
	}
	return false
}
