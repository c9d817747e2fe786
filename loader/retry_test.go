package loader

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// unwilling starts a server. It answers the n-th request, from 1, with "HTTP/1.1 ", the text that answer returns, and
// an empty line, or, if the text is empty, with the file.
func unwilling(t *testing.T, file []byte, answer func(n int64) string) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	s := serve(t, func(rw http.ResponseWriter, r *http.Request) {
		a := answer(asked.Add(1))
		if a == "" {
			content(file)(rw, r)
			return
		}
		c, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = c.Write([]byte("HTTP/1.1 " + a + "\r\n\r\n"))
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = bufio.NewReader(c).Peek(1) // wait until the client closes or sends more
		_ = c.Close()
	})
	return s.URL, asked
}

func times(from, n int64, answer string) func(int64) string {
	return func(i int64) string {
		if i >= from && i < from+n {
			return answer
		}
		return ""
	}
}

const noBody = "\r\nContent-Length: 0"

// Invariant: loader: if a server answers that it cannot serve now, Open and Fetch ask it again.
func TestAnswersThatMayChangeAreWaitedOut(t *testing.T) {
	file := random(400_000, 60)
	for name, answer := range map[string]string{
		"503":                   "503 Slow Down" + noBody,
		"503 in HTTP's version": "503 x" + noBody + "\r\nConnection: close",
		"429":                   "429 Too Many Requests" + noBody + "\r\nRetry-After: 0",
		"500":                   "500 Internal Server Error" + noBody,
		"502, with a body":      "502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>",
		"504, chunked":          "504 Gateway Timeout\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0",
		"520 of a proxy":        "520 Web Server Returned an Unknown Error" + noBody,
		"a huge body":           "503 x\r\nContent-Length: 1099511627776",
		"408":                   "408 Request Timeout" + noBody + "\r\nConnection: close",
		"599":                   "599 x" + noBody,
		"a code that is none":   "799 x" + noBody, // counts as 5xx (RFC 9110, section 15)
	} {
		for _, connections := range []int{1, 2} {
			for _, from := range []int64{1, 2, 5} { // during Open, at the first range, and later
				t.Run(fmt.Sprintf("%s/%d from %d", name, connections, from), func(t *testing.T) {
					w := newWorldOf(t, 512<<10)
					c := w.clock()
					w.conf.RangeSize, w.conf.Connections = 50_000, connections
					url, _ := unwilling(t, file, times(from, 2, answer))
					w.whole(w.open(url), file, 5)
					list := c.pauses()
					if len(list) == 0 || slices.Min(list) < pauseFirst || slices.Max(list) > 2*pauseFirst {
						t.Errorf("pauses %v", list)
					}
				})
			}
		}
	}
}

// A server that closes an idle connection may send a 408 first.
func TestTimeoutOfAKeptConnection(t *testing.T) {
	w := newWorldOf(t, 64<<10)
	c := w.clock()
	w.conf.Connections, w.conf.RangeSize = 1, 1000
	file := random(5000, 66)
	s := raw(t, file, func(c *net.TCPConn, _ *bufio.Reader, a ask) bool {
		_ = good(c, file, a)
		_, _ = c.Write([]byte("HTTP/1.1 408 Request Timeout" + noBody + "\r\nConnection: close\r\n\r\n"))
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		return false
	})
	w.whole(w.open(s.url), file, 0)
	testkit.Equal(t, "pauses", fmt.Sprint(c.pauses()), "[10ms 10ms 10ms 10ms]")
}

func TestReadHostWaitsToo(t *testing.T) {
	w := newWorld(t)
	c := w.clock()
	file := random(1000, 61)
	url, _ := unwilling(t, file, times(2, 3, "503 x"+noBody))
	o := w.open(url)
	p := make([]byte, 100)
	testkit.OK(t, o.ReadHost(t.Context(), p, 7))
	testkit.Equal(t, "the bytes", string(p), string(file[7:107]))
	testkit.Equal(t, "pauses", fmt.Sprint(c.pauses()), "[10ms 20ms 40ms]")
}

func TestAnswersThatDoNotChangeAreErrors(t *testing.T) {
	file := random(100_000, 62)
	for _, answer := range []string{"400 x", "401 x", "403 Forbidden", "404 Not Found", "410 Gone", "421 x",
		"501 Not Implemented", "505 x", "302 Found\r\nLocation: /x"} {
		t.Run(answer[:3], func(t *testing.T) {
			w := newWorldOf(t, 128<<10)
			c := w.clock()
			w.conf.Connections = 1
			answer += noBody + "\r\nRetry-After: 0"
			url, asked := unwilling(t, file, times(2, 1, answer))
			_, err := w.fetch(w.open(url), Piece{Len: 100_000})
			testkit.ErrorSays(t, err, answer[:3])
			if e := (*StatusError)(nil); !errors.As(err, &e) {
				t.Error(err)
			}
			testkit.Equal(t, "requests", asked.Load(), 2)
			testkit.Equal(t, "pauses", len(c.pauses()), 0)
		})
	}
}

// Invariant: loader: a server that refuses for now is asked no more when Config.Retry and a second
// have passed without another byte.
func TestWaitsAreBounded(t *testing.T) {
	file := random(1000, 63)
	for _, retryAfter := range []string{"", "Retry-After: 0", "Retry-After: 7", "Retry-After: soon"} {
		for _, from := range []int64{1, 2} {
			w := newWorldOf(t, 64<<10)
			c := w.clock()
			w.conf.Retry, w.conf.Connections = 30*time.Second, 1
			url, asked := unwilling(t, file, times(from, 1000, strings.TrimSpace("503 x"+noBody+"\r\n"+retryAfter)))
			o, err := Open(t.Context(), url, w.conf)
			if err == nil {
				_, err = w.fetch(o, Piece{Len: 1000})
				testkit.OK(t, o.Close())
			}
			testkit.ErrorSays(t, err, "503 x")
			e := (*StatusError)(nil)
			if !errors.As(err, &e) || e.Code != 503 {
				t.Errorf("%v is no StatusError", err)
			}
			all := time.Duration(0)
			for _, d := range c.pauses() {
				all += d
			}
			if least := 23 * time.Second; all < least || all > w.conf.Retry+pauseLast {
				t.Errorf("%s: it has waited for %v", retryAfter, all)
			}
			if n := asked.Load(); n > 40 {
				t.Errorf("%s: it has asked %d times", retryAfter, n)
			}
		}
	}
}

func TestProgressBeginsTheWaitAnew(t *testing.T) {
	w := newWorld(t)
	c := w.clock()
	w.conf.Retry, w.conf.Connections, w.conf.RangeSize = 30*time.Second, 1, 50_000
	file := random(400_000, 64)
	url, _ := unwilling(t, file, func(n int64) string {
		if n%2 == 0 {
			return "503 x" + noBody + "\r\nRetry-After: 25"
		}
		return ""
	})
	w.whole(w.open(url), file, 0)
	list := c.pauses()
	testkit.Equal(t, "pauses", len(list), 8)
	testkit.Equal(t, "each", slices.Min(list), 25*time.Second)
}

func TestRetryAfter(t *testing.T) {
	const date = "Date: Thu, 02 Jan 2020 03:04:05 GMT"   // the time at which w.clock starts
	for headers, want := range map[string]time.Duration{ // -1: an error
		"":                                     pauseFirst,
		"Retry-After: 12":                      12 * time.Second,
		"Retry-After:  30":                     30 * time.Second,
		"Retry-After: 31":                      -1,
		"Retry-After: 99999999999999999999999": -1,
		"Retry-After: -5":                      pauseFirst,
		"Retry-After: 1.5":                     pauseFirst,
		"Retry-After: Thu, 02 Jan 2020 03:04:25 GMT":                                        20 * time.Second,
		"Retry-After: Thursday, 02-Jan-20 03:04:25 GMT":                                     20 * time.Second,
		"Retry-After: Thu Jan  2 03:04:25 2020":                                             20 * time.Second,
		"Retry-After: Thu, 02 Jan 2020 03:00:00 GMT":                                        pauseFirst,
		"Retry-After: Thu, 02 Jan 2025 03:00:00 GMT":                                        -1,
		date + "\r\nRetry-After: Thu, 02 Jan 2020 03:04:25 GMT":                             20 * time.Second,
		"Date: Thu, 02 Jan 2025 03:00:00 GMT\r\nRetry-After: Thu, 02 Jan 2025 03:00:03 GMT": 3 * time.Second,
		"Date: x\r\nRetry-After: Thu, 02 Jan 2020 03:04:06 GMT\r\nRetry-After: 25":          time.Second,
	} {
		t.Run(headers, func(t *testing.T) {
			w := newWorldOf(t, 64<<10)
			c := w.clock()
			w.conf.Retry = 30 * time.Second
			file := random(1000, 65)
			url, _ := unwilling(t, file, times(2, 1, strings.TrimSpace("503 x"+noBody+"\r\n"+headers)))
			o := w.open(url)
			_, err := w.fetch(o, Piece{Len: 1000})
			if want < 0 {
				testkit.ErrorSays(t, err, "503 x", "Retry-After", "30s", "--retry")
				testkit.Equal(t, "pauses", len(c.pauses()), 0)
				return
			}
			testkit.OK(t, err)
			testkit.Equal(t, "pauses", fmt.Sprint(c.pauses()), fmt.Sprint([]time.Duration{want}))
		})
	}
}
