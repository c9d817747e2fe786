package epoch

import (
	"testing"
	"testing/synctest"
)

// Wait also waits for a reader that loaded the index before an earlier Wait, and counts itself after it.
func TestWaitSeesThoseWhoCameLateToTheirCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e Epoch
		e.Init()
		index := e.index.Load() & 1
		e.Wait()
		if e.index.Load()&1 == index {
			t.Fatal("the index did not turn")
		}
		e.inside[index].n.Add(1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.Wait()
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("Wait did not wait")
		default:
		}
		e.Leave(int(index))
		synctest.Wait()
		select {
		case <-done:
		default:
			t.Fatal("Wait sleeps")
		}
	})
}
