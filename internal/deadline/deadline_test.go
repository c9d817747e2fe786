package deadline_test

import (
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/deadline"
)

func passed(d *deadline.Deadline) bool {
	select {
	case <-d.Wait():
		return true
	default:
		return false
	}
}

func TestDeadlineMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := deadline.New()
		if passed(d) {
			t.Error("new: passed")
		}
		d.Set(time.Now().Add(time.Second))
		waiting := d.Wait()
		d.Set(time.Now().Add(time.Hour))
		time.Sleep(time.Minute)
		select {
		case <-waiting:
			t.Error("it passed though it was moved")
		default:
		}
		d.Set(time.Now().Add(time.Second))
		<-waiting
		if !passed(d) {
			t.Error("after its time: not passed")
		}
		d.Set(time.Time{})
		if passed(d) {
			t.Error("never: passed")
		}
		d.Set(time.Now().Add(-time.Second))
		if !passed(d) {
			t.Error("in the past: not passed")
		}
		d.Set(time.Now().Add(time.Second))
		if passed(d) {
			t.Error("in the future again: passed")
		}
		<-d.Wait()
	})
}
