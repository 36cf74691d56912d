package tickwright

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

type payload struct {
	N   int    `json:"n"`
	How string `json:"how,omitempty"`
}

// client returns a client of the server that the tests have: `make test-clients` starts it.
func client(t *testing.T, options ...Option) *Client {
	t.Helper()
	url, key := os.Getenv("TICKWRIGHT_TEST_URL"), os.Getenv("TICKWRIGHT_TEST_KEY")
	if url == "" || key == "" {
		t.Fatal("TICKWRIGHT_TEST_URL and TICKWRIGHT_TEST_KEY are not set: run the tests by make test-clients")
	}
	return NewClient(url, key, options...)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// working runs a worker for the length of the test.
func working(t *testing.T, w *Worker) (stop func()) {
	t.Helper()
	w.Pool = "shop"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func schedule(t *testing.T, c *Client, job NewJob) int64 {
	t.Helper()
	made, err := c.Schedule(within(t, 10*time.Second), job)
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for ctx := within(t, 20*time.Second); !condition(); {
		if sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatal("it did not happen")
		}
	}
}

// A job is scheduled once for a key, read, listed and cancelled.
func TestSchedule(t *testing.T) {
	c, ctx := client(t), within(t, 20*time.Second)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	job := NewJob{Type: "client.slow", Payload: payload{N: 1}, At: at, Key: fmt.Sprint("go-", at.UnixNano()), Priority: 7, Attempts: 4}
	first, err := c.Schedule(ctx, job)
	if err != nil || !first.Created {
		t.Fatal(first, err)
	}
	if again, err := c.Schedule(ctx, job); err != nil || again.Created || again.ID != first.ID {
		t.Fatal(again, err)
	}
	got, err := c.Get(ctx, first.ID)
	if err != nil || got.Status != Pending || got.Priority != 7 || got.MaxAttempts != 4 || !got.ExecuteAt.Equal(at) {
		t.Fatal(got, err)
	}
	page, err := c.List(ctx, Filter{Type: "client.slow", Status: []Status{Pending}, From: at, Limit: 10})
	if err != nil || len(page.Items) != 1 || page.Items[0].ID != first.ID {
		t.Fatal(page, err)
	}
	if never, err := c.Cancel(ctx, first.ID); err != nil || !never {
		t.Fatal(never, err)
	}
}

// Many jobs are scheduled in one request; a bad one is rejected alone.
func TestScheduleMany(t *testing.T) {
	c, ctx := client(t), within(t, 20*time.Second)
	jobs := []NewJob{{Type: "client.slow", Delay: time.Hour}, {Type: "no.such.type"}, {Type: "client.slow", Delay: time.Hour}}
	done, err := c.ScheduleMany(ctx, jobs)
	if err != nil || done.Created != 2 || done.Rejected != 1 || done.Rejects[0].Line != 2 {
		t.Fatal(done, err)
	}
}

// Errors have the server's stable code.
func TestErrors(t *testing.T) {
	ctx := within(t, 20*time.Second)
	_, err := client(t).Schedule(ctx, NewJob{Type: "no.such.type"})
	if Code(err) != "unknown_task_type" {
		t.Fatal(err)
	}
	_, err = NewClient(os.Getenv("TICKWRIGHT_TEST_URL"), "tw_wrong").Get(ctx, 1)
	if Code(err) != "unauthenticated" {
		t.Fatal(err)
	}
}

// Jobs run up to the concurrency, each of them once, and their results are waited for.
func TestWork(t *testing.T) {
	c, ctx := client(t), within(t, 60*time.Second)
	var now, most, count int64
	w := &Worker{Client: c, Concurrency: 5}
	Handle(w, "client.echo", func(_ context.Context, job *Job, p payload) (payload, error) {
		if n := atomic.AddInt64(&now, 1); n > atomic.LoadInt64(&most) {
			atomic.StoreInt64(&most, n)
		}
		defer atomic.AddInt64(&now, -1)
		atomic.AddInt64(&count, 1)
		time.Sleep(5 * time.Millisecond)
		return payload{N: p.N + 1}, nil
	})
	var ids []int64
	for n := 0; n < 50; n++ {
		ids = append(ids, schedule(t, c, NewJob{Type: "client.echo", Payload: payload{N: n}}))
	}
	working(t, w)
	for n, id := range ids {
		var got payload
		if err := c.Wait(ctx, id, &got); err != nil || got.N != n+1 {
			t.Fatal(n, got, err)
		}
	}
	if count != 50 || most > 5 {
		t.Fatalf("%d attempts, %d at once", count, most)
	}
}

// What a handler returns says what follows; a panic fails its attempt only.
func TestOutcomes(t *testing.T) {
	c, ctx := client(t), within(t, 60*time.Second)
	var snoozed int64
	w := &Worker{Client: c}
	Handle(w, "client.fails", func(_ context.Context, job *Job, p payload) (string, error) {
		switch {
		case p.How == "final":
			return "", Fail(errors.New("no such order"))
		case p.How == "retry" && job.Attempt == 1:
			return "", Retry(errors.New("again"), 100*time.Millisecond)
		case p.How == "panic" && job.Attempt == 1:
			panic("a bug")
		case p.How == "snooze" && atomic.AddInt64(&snoozed, 1) == 1:
			return "", Snooze(100 * time.Millisecond)
		}
		return fmt.Sprint("attempt ", job.Attempt), nil
	})
	working(t, w)
	for how, wanted := range map[string]string{"retry": "attempt 2", "panic": "attempt 2", "snooze": "attempt 1"} {
		id := schedule(t, c, NewJob{Type: "client.fails", Payload: payload{How: how}, Attempts: 3})
		var got string
		if err := c.Wait(ctx, id, &got); err != nil || got != wanted {
			t.Fatal(how, got, err)
		}
	}
	id := schedule(t, c, NewJob{Type: "client.fails", Payload: payload{How: "final"}, Attempts: 3})
	var failed *JobError
	if err := c.Wait(ctx, id, nil); !errors.As(err, &failed) || failed.Job.Error != "handler_failed: no such order" {
		t.Fatal(err)
	}
}

// A cancelled job ends its handler's context; progress is seen.
func TestCancel(t *testing.T) {
	c, ctx := client(t), within(t, 60*time.Second)
	started, reason := make(chan int64, 1), make(chan error, 1)
	w := &Worker{Client: c, Lease: 2 * time.Second}
	Handle(w, "client.slow", func(ctx context.Context, job *Job, _ payload) (any, error) {
		if held, err := job.Progress(ctx, 0.5); err != nil || !held {
			t.Error(held, err)
		}
		started <- job.ID
		<-ctx.Done()
		reason <- job.StopReason()
		return nil, ctx.Err()
	})
	working(t, w)
	id := schedule(t, c, NewJob{Type: "client.slow", Payload: payload{}})
	<-started
	if never, err := c.Cancel(ctx, id); err != nil || never {
		t.Fatal(never, err)
	}
	if got := <-reason; got != ErrCancelled {
		t.Fatal(got)
	}
	eventually(t, func() bool { job, err := c.Get(ctx, id); return err == nil && job.Status == Cancelled })
}

// An attempt beyond its timeout is stopped and fails; it was the last one, so it began before it ran.
func TestTimeout(t *testing.T) {
	c, ctx := client(t), within(t, 60*time.Second)
	w := &Worker{Client: c}
	Handle(w, "client.slow", func(ctx context.Context, _ *Job, _ payload) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	working(t, w)
	id := schedule(t, c, NewJob{Type: "client.slow", Payload: payload{}, Timeout: 100 * time.Millisecond, Attempts: 1})
	var failed *JobError
	if err := c.Wait(ctx, id, nil); !errors.As(err, &failed) || failed.Job.Error != "timeout: stopped after 100 ms" {
		t.Fatal(err)
	}
}

// A stop lets a running attempt end, and leaves the rest to others.
func TestStop(t *testing.T) {
	c, ctx := client(t), within(t, 60*time.Second)
	started, release := make(chan struct{}), make(chan struct{})
	first := &Worker{Client: c, Concurrency: 1}
	Handle(first, "client.slow", func(context.Context, *Job, payload) (string, error) {
		close(started)
		<-release
		return "first", nil
	})
	stop := working(t, first)
	running := schedule(t, c, NewJob{Type: "client.slow", Payload: payload{N: 1}})
	<-started
	waiting := schedule(t, c, NewJob{Type: "client.slow", Payload: payload{N: 2}})
	go func() {
		time.Sleep(50 * time.Millisecond)
		close(release)
	}()
	stop()
	second := &Worker{Client: c}
	Handle(second, "client.slow", func(context.Context, *Job, payload) (string, error) { return "second", nil })
	working(t, second)
	for id, wanted := range map[int64]string{running: "first", waiting: "second"} {
		var got string
		if err := c.Wait(ctx, id, &got); err != nil || got != wanted {
			t.Fatal(got, err)
		}
	}
}

// A worker that cannot renew its lease stops its attempts, and works on under a new session.
func TestLostSession(t *testing.T) {
	c, ctx := client(t), within(t, 60*time.Second)
	broken := &breakable{}
	broken.on.Store(true)
	w := &Worker{Client: client(t, WithHTTPClient(broken.client())), Lease: 2 * time.Second}
	reasons := make(chan error, 1)
	Handle(w, "client.slow", func(ctx context.Context, job *Job, _ payload) (string, error) {
		if !broken.on.Load() {
			return "second time", nil
		}
		<-ctx.Done()
		reasons <- job.StopReason()
		broken.on.Store(false)
		return "dropped", nil
	})
	working(t, w)
	id := schedule(t, c, NewJob{Type: "client.slow", Payload: payload{}, Attempts: 3})
	var got string
	if err := c.Wait(ctx, id, &got); err != nil || got != "second time" {
		t.Fatal(got, err)
	}
	if reason := <-reasons; reason != ErrLost {
		t.Fatal(reason)
	}
}

// transport counts requests that wait for a job; as an earlier release it refuses them.
type transport struct {
	earlier bool
	waits   atomic.Int64
	gets    atomic.Int64
}

func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet {
		t.gets.Add(1)
	}
	if request.URL.Query().Has("wait") {
		t.waits.Add(1)
		if t.earlier {
			body := `{"status": 400, "code": "unknown_parameter", "detail": "no parameter 'wait'"}`
			return &http.Response{StatusCode: 400, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: request}, nil
		}
	}
	return http.DefaultTransport.RoundTrip(request)
}

// A result is waited for with one request, however long the job takes; an earlier server is asked again and again.
func TestWait(t *testing.T) {
	for _, earlier := range []bool{false, true} {
		counted := &transport{earlier: earlier}
		c, ctx := client(t, WithHTTPClient(&http.Client{Transport: counted})), within(t, 60*time.Second)
		id := schedule(t, c, NewJob{Type: "client.echo", Payload: payload{N: 1}})
		ended := make(chan error, 1)
		var got payload
		go func() { ended <- c.Wait(ctx, id, &got) }()
		eventually(t, func() bool { return counted.waits.Load() == 1 })
		w := &Worker{Client: client(t)}
		Handle(w, "client.echo", func(_ context.Context, _ *Job, p payload) (payload, error) { return payload{N: p.N + 1}, nil })
		stop := working(t, w)
		if err := <-ended; err != nil || got.N != 2 {
			t.Fatal(got, err)
		}
		stop()
		if counted.waits.Load() != 1 || (!earlier && counted.gets.Load() != 1) {
			t.Fatal(earlier, counted.waits.Load(), counted.gets.Load())
		}
	}
}

type hub struct {
	URL string `json:"url"`
}

type entry struct {
	Amount int `json:"amount"`
}

// Polls, tasks and chunks are worked by one worker, and each says by its error what follows. The server of the tests has
// one piece of work of each kind, and checks what has become of it.
func TestCalls(t *testing.T) {
	var polls, tasks, chunks atomic.Int64
	polled, ran, worked := make(chan Poll, 1), make(chan EntityTask[hub], 1), make(chan BatchChunk[entry], 1)
	w := &Worker{Client: client(t), Concurrency: 4}
	HandlePolls(w, "client.partner", func(ctx context.Context, poll Poll) (Answer, error) {
		if polls.Add(1) == 1 {
			return Answer{}, Throttled(time.Second)
		}
		if held, err := poll.Progress(ctx, map[string]int{"asked": 1}); err != nil || !held {
			t.Error(held, err)
		}
		polled <- poll
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return Answer{Status: "picked_up", At: at, Events: []ScanEvent{{At: at, Text: "hub"}}}, nil
	})
	HandleTasks(w, "CLIENT_TASK", func(_ context.Context, task EntityTask[hub]) error {
		switch tasks.Add(1) {
		case 1:
			return Snooze(100 * time.Millisecond)
		case 2:
			return errors.New("no route")
		}
		ran <- task
		return nil
	})
	HandleChunks(w, "client.chunk", func(_ context.Context, chunk BatchChunk[entry]) (ChunkResult, error) {
		chunks.Add(1)
		var result ChunkResult
		for _, member := range chunk.Members {
			if member.Fields.Amount > 10 {
				result.Actions = append(result.Actions, Action{ClientID: member.ID, Payload: member.Fields})
			}
		}
		result.Skipped = []Skipped{{ClientID: "1", Problem: "too small"}}
		worked <- chunk
		return result, nil
	})
	stop := working(t, w)
	if poll := <-polled; poll.ExternalID != "T1" || poll.AccountID != "shop" || poll.Partner != "client.partner" || poll.DueAt.IsZero() {
		t.Fatal(poll)
	}
	if task := <-ran; task.EntityCode != "HUB-1" || task.Party.URL != "https://hub.example" || task.LastExecutedAt != nil {
		t.Fatal(task)
	}
	if chunk := <-worked; chunk.Batch != "client.chunk" || len(chunk.Members) != 3 || chunk.Members[2].ID != "3" {
		t.Fatal(chunk)
	}
	stop()
	if polls.Load() != 2 || tasks.Load() != 3 || chunks.Load() != 1 {
		t.Fatal(polls.Load(), tasks.Load(), chunks.Load())
	}
}
