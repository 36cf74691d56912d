package tickwright

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	claimWait      = "20s"
	resultsMax     = 500
	resultBytesMax = 150_000
	retryEvery     = 500 * time.Millisecond
	lockedEvery    = time.Second
	stopWithin     = 3 * time.Second
)

// Worker claims what it has handlers for (jobs, polls, tasks, chunks) and runs them. Set its fields before [Worker.Run].
type Worker struct {
	Client      *Client
	Pool        string        // it works what has the target remote:POOL
	Concurrency int           // attempts at once; 10 by default, 1000 at the most
	Name        string        // for operators; the host and the process by default
	Lease       time.Duration // without a heartbeat for so long, others have its jobs; that of the server by default
	Drain       time.Duration // how long attempts may take to end after the context of Run is done; 25 s by default
	OnError     func(error)   // called with errors that the worker survives

	handlers map[handlerKey]Handler
	mutex    sync.Mutex
	running  map[int64]*Job
	busy     int // handlers that have not returned, also those of a lost session
	results  []result
	changed  chan struct{} // an attempt has ended, or its result is written
	pending  chan struct{} // there are results to write
	stopped  context.CancelFunc
}

type handlerKey struct{ kind, name string }

type attempt struct {
	ID    int64  `json:"id"`
	Fence int64  `json:"fence"`
	Kind  string `json:"kind,omitempty"` // "" for a job
}

type session struct {
	client    *Client
	token     string
	lease     time.Duration
	heartbeat time.Duration
	renewed   time.Time
	lost      context.Context
	lose      context.CancelFunc
	claims    int
	unsure    bool // a claim had no answer: the next one says what is held
}

// left returns how long the lease lasts, at most the time between heartbeats; 0 where it is over by the clock of this process.
func (s *session) left() time.Duration {
	left := time.Until(s.renewed.Add(s.lease))
	if left > s.heartbeat {
		return s.heartbeat
	} else if left < 0 {
		return 0
	}
	return left
}

func (s *session) call(ctx context.Context, name string, body, answer any) error {
	header := http.Header{"Tickwright-Session": {s.token}}
	err := s.client.send(ctx, http.MethodPost, "/v1/worker/"+name, header, body, answer)
	if Code(err) == "session_lost" {
		s.lose()
	}
	return err
}

// Handle registers the handler of a task type, before [Worker.Run]; see also the function [Handle].
func (w *Worker) Handle(taskType string, handler Handler) {
	w.handle(kindJob, taskType, handler)
}

func (w *Worker) handle(kind, name string, handler Handler) {
	if w.handlers == nil {
		w.handlers = map[handlerKey]Handler{}
	}
	w.handlers[handlerKey{kind, name}] = handler
}

// names returns what it has handlers for, of one kind.
func (w *Worker) names(kind string) []string {
	names := []string{}
	for key := range w.handlers {
		if key.kind == kind {
			names = append(names, key.name)
		}
	}
	return names
}

// Run works until ctx is done or an operator drains the worker. Then it claims no more, waits for running attempts, and
// returns nil. It returns an error where the server refuses the registration.
//
// For a stop on signals, pass the context of [signal.NotifyContext].
func (w *Worker) Run(ctx context.Context) error {
	ctx, w.stopped = context.WithCancel(ctx)
	defer w.stopped()
	w.running = map[int64]*Job{}
	w.changed, w.pending = make(chan struct{}, 1), make(chan struct{}, 1)
	writing, stopWriting := context.WithCancel(context.Background())
	defer stopWriting()
	go w.write(writing)
	var last *session
	for ctx.Err() == nil {
		session, err := w.register(ctx)
		if err != nil {
			return err
		}
		if session != nil {
			last = session
			w.work(ctx, session)
		}
	}
	if last != nil {
		w.leave(last)
	}
	return nil
}

func (w *Worker) register(ctx context.Context) (*session, error) {
	name := w.Name
	if name == "" {
		host, _ := os.Hostname()
		name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	body := map[string]any{
		"name": name, "pool": w.Pool, "client": "tickwright-go/0.1.0", "types": w.names(kindJob),
		"partners": w.names(kindPoll), "modules": w.names(kindTask), "batches": w.names(kindChunk),
	}
	if w.Lease > 0 {
		body["lease"] = durationText(w.Lease)
	}
	for {
		sent := time.Now()
		var answer struct {
			Session     string `json:"session"`
			LeaseMS     int64  `json:"lease_ms"`
			HeartbeatMS int64  `json:"heartbeat_ms"`
		}
		err := w.Client.send(ctx, http.MethodPost, "/v1/worker/register", nil, body, &answer)
		var problem *Error
		switch {
		case err == nil:
			lost, lose := context.WithCancel(context.Background())
			return &session{
				client: w.Client, token: answer.Session, renewed: sent, lost: lost, lose: lose,
				lease:     time.Duration(answer.LeaseMS) * time.Millisecond,
				heartbeat: time.Duration(answer.HeartbeatMS) * time.Millisecond,
			}, nil
		case ctx.Err() != nil:
			return nil, nil
		case errors.As(err, &problem) && !problem.Retriable():
			return nil, err
		}
		w.survive(err)
		_ = sleep(ctx, retryEvery)
	}
}

func (w *Worker) work(ctx context.Context, s *session) {
	go w.heartbeats(s)
	claiming, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		<-s.lost.Done()
		stop()
		w.dropAll(s)
	}()
	for claiming.Err() == nil {
		if room := w.room(); room > 0 {
			w.claim(claiming, s, room)
			continue
		}
		select {
		case <-w.changed:
		case <-claiming.Done():
		}
	}
}

func (w *Worker) room() int {
	most := w.Concurrency
	if most <= 0 {
		most = 10
	} else if most > 1000 {
		most = 1000
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return most - w.busy
}

func (w *Worker) claim(ctx context.Context, s *session, room int) {
	s.claims++
	body := map[string]any{"claim": s.claims, "max": room, "wait": claimWait}
	if s.unsure {
		body["held"] = w.held(s)
	}
	var answer struct {
		Jobs  []*Job `json:"jobs"`
		Calls []*Job `json:"calls"`
		Drain bool   `json:"drain"`
	}
	if err := s.call(ctx, "claim", body, &answer); err != nil {
		s.unsure = true
		if ctx.Err() == nil {
			w.survive(err)
			_ = sleep(ctx, retryEvery)
		}
		return
	}
	s.unsure = false
	if answer.Drain {
		w.stopped()
	}
	w.start(s, append(answer.Jobs, answer.Calls...))
}

func (w *Worker) heartbeats(s *session) {
	for sleep(s.lost, s.left()) == nil {
		sent := time.Now()
		var answer struct {
			Drain bool
			Stop  []struct {
				attempt
				Reason string
			}
		}
		ctx, cancel := context.WithTimeout(s.lost, s.left()+time.Millisecond)
		err := s.call(ctx, "heartbeat", map[string]any{"held": w.held(s)}, &answer)
		cancel()
		if err != nil {
			w.survive(err)
			if s.left() == 0 {
				s.lose()
			}
			continue
		}
		s.renewed = sent
		if answer.Drain {
			w.stopped()
		}
		for _, one := range answer.Stop {
			if job := w.find(one.attempt); job != nil {
				job.stop(stopReasons[one.Reason])
			}
		}
	}
}

func (w *Worker) leave(s *session) {
	drain := w.Drain
	if drain <= 0 {
		drain = 25 * time.Second
	}
	if !w.allEnded(s, drain) {
		for _, job := range w.jobs() {
			job.stop(ErrShutdown)
		}
		w.allEnded(s, stopWithin)
	}
	if s.lost.Err() == nil {
		ctx, cancel := context.WithTimeout(s.lost, stopWithin)
		defer cancel()
		if err := s.call(ctx, "close", map[string]any{}, nil); err != nil { // it releases what is left
			w.survive(err)
		}
	}
	s.lose()
}

// allEnded waits until every attempt has ended and is written, at most so long.
func (w *Worker) allEnded(s *session, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(s.lost, within)
	defer cancel()
	for {
		w.mutex.Lock()
		left := len(w.running) + len(w.results)
		w.mutex.Unlock()
		if left == 0 {
			return true
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (w *Worker) start(s *session, jobs []*Job) {
	if len(jobs) == 0 {
		return
	}
	var last []attempt
	w.mutex.Lock()
	w.busy += len(jobs)
	for _, job := range jobs {
		job.session = s
		w.running[job.ID] = job
		if job.Begin {
			last = append(last, job.attempt())
		}
	}
	w.mutex.Unlock()
	begins := map[int64]bool{}
	if len(last) > 0 {
		var answer struct{ Begins []int64 }
		for s.call(s.lost, "begin", map[string]any{"jobs": last}, &answer) != nil && sleep(s.lost, retryEvery) == nil {
		}
		for _, id := range answer.Begins {
			begins[id] = true
		}
	}
	for _, job := range jobs {
		if job.Begin && !begins[job.ID] {
			w.report(job, result{Outcome: "release"})
		} else {
			go w.run(job)
		}
	}
}

func (w *Worker) run(job *Job) {
	ctx, cancel := context.WithTimeout(job.session.lost, time.Duration(job.StartInMS+job.TimeoutMS)*time.Millisecond)
	defer cancel()
	job.mutex.Lock()
	job.cancel = cancel
	stopped := job.reason != nil
	job.mutex.Unlock()
	if stopped {
		cancel()
	}
	if sleep(ctx, time.Duration(job.StartInMS)*time.Millisecond); ctx.Err() != nil { // it must stop before it starts
		ended := resultOf(job, nil, ctx.Err())
		ended.Started = false
		w.report(job, ended)
		return
	}
	value, err := w.attempt(ctx, job)
	if ctx.Err() == context.DeadlineExceeded {
		job.stop(ErrTimeout)
	}
	w.report(job, resultOf(job, value, err))
}

// attempt calls the handler; a panic is an error of this attempt only.
func (w *Worker) attempt(ctx context.Context, job *Job) (value any, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	key := handlerKey{kindJob, job.Type}
	if job.Kind != "" {
		key = handlerKey{job.Kind, job.Name}
	}
	handler := w.handlers[key]
	if handler == nil {
		return nil, Fail(fmt.Errorf("no handler for the %s %s", key.kind, key.name))
	}
	return handler(ctx, job)
}

// dropAll stops the attempts of a lost session and drops their results: others have these jobs.
func (w *Worker) dropAll(s *session) {
	for _, job := range w.jobs() {
		if job.session == s {
			job.stop(ErrLost)
		}
	}
	w.mutex.Lock()
	for id, job := range w.running {
		if job.session == s {
			delete(w.running, id)
		}
	}
	var left []result
	for _, one := range w.results {
		if one.session != s {
			left = append(left, one)
		}
	}
	w.results = left
	w.mutex.Unlock()
	notify(w.changed)
}

func (w *Worker) jobs() []*Job {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	jobs := make([]*Job, 0, len(w.running))
	for _, job := range w.running {
		jobs = append(jobs, job)
	}
	return jobs
}

func (w *Worker) find(one attempt) *Job {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if job := w.running[one.ID]; job != nil && job.Fence == one.Fence {
		return job
	}
	return nil
}

func (w *Worker) held(s *session) []attempt {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	held := make([]attempt, 0, len(w.running)+len(w.results))
	for _, job := range w.running {
		if job.session == s {
			held = append(held, job.attempt())
		}
	}
	for _, one := range w.results {
		if one.session == s {
			held = append(held, attempt{one.ID, one.Fence, one.Kind})
		}
	}
	return held
}

func (w *Worker) survive(err error) {
	if w.OnError != nil {
		w.OnError(err)
	}
}
