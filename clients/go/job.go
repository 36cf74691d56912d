package tickwright

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Reasons for which a handler must stop: [Job.StopReason] after its context is done.
var (
	ErrCancelled = errors.New("tickwright: the job's user cancelled it")
	ErrTimeout   = errors.New("tickwright: the attempt took longer than its timeout")
	ErrLost      = errors.New("tickwright: the worker lost the job, which another one has now")
	ErrShutdown  = errors.New("tickwright: the worker stops")
)

var stopReasons = map[string]error{"cancelled": ErrCancelled, "timeout": ErrTimeout, "lost": ErrLost}

type (
	failError   struct{ error }
	snoozeError struct{ wait time.Duration }
	retryError  struct {
		error
		after time.Duration
	}
)

func (e failError) Unwrap() error   { return e.error }
func (e retryError) Unwrap() error  { return e.error }
func (e snoozeError) Error() string { return "snoozed for " + e.wait.String() }

// Fail wraps an error that another attempt cannot mend: the job fails at once.
func Fail(err error) error { return failError{err} }

// Retry wraps an error of an attempt; after is the least wait before the next one.
func Retry(err error, after time.Duration) error { return retryError{err, after} }

// Snooze returns the error of a handler that is to be called again after wait; it costs no attempt.
func Snooze(wait time.Duration) error { return snoozeError{wait} }

// Job is one attempt of one job.
type Job struct {
	ID          int64           `json:"id"`
	Type        string          `json:"type"`
	Payload     json.RawMessage `json:"payload"`
	Attempt     int             `json:"attempt"` // from 1
	MaxAttempts int             `json:"max_attempts"`
	Fence       int64           `json:"fence"` // rises with every attempt: refuse a lower one where you write
	ExecuteAt   time.Time       `json:"execute_at"`
	Traceparent string          `json:"traceparent"`

	// Of polls, tasks and chunks, whose handlers get a [Poll], an [EntityTask] or a [BatchChunk].
	Kind string `json:"kind"`
	Name string `json:"name"`

	TimeoutMS int64 `json:"timeout_ms"`
	StartInMS int64 `json:"start_in_ms"`
	Begin     bool  `json:"begin"`

	session *session
	cancel  context.CancelFunc
	mutex   sync.Mutex
	reason  error
}

// StopReason returns why the handler must stop, or nil.
func (j *Job) StopReason() error {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if j.reason == nil && j.session.lost.Err() != nil {
		return ErrLost
	}
	return j.reason
}

func (j *Job) attempt() attempt { return attempt{j.ID, j.Fence, j.Kind} }

func (j *Job) stop(reason error) {
	j.mutex.Lock()
	if j.reason == nil {
		j.reason = reason
	}
	cancel := j.cancel
	j.mutex.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Progress writes the job's progress, any JSON. It reports whether this worker still holds the job.
func (j *Job) Progress(ctx context.Context, value any) (bool, error) {
	item := map[string]any{"id": j.ID, "fence": j.Fence, "progress": value}
	if j.Kind != "" {
		item["kind"] = j.Kind
	}
	var answer struct{ Done int }
	err := j.session.call(ctx, "progress", map[string]any{"jobs": []any{item}}, &answer)
	return answer.Done == 1, err
}

// Handler runs an attempt. Its context is done when it must stop; what it returns is the job's result.
type Handler func(ctx context.Context, job *Job) (any, error)

// Handle registers the typed handler of a task type, before [Worker.Run]. A payload that cannot be decoded fails the job.
func Handle[P, R any](w *Worker, taskType string, handler func(ctx context.Context, job *Job, payload P) (R, error)) {
	w.Handle(taskType, func(ctx context.Context, job *Job) (any, error) {
		var payload P
		if err := json.Unmarshal(job.Payload, &payload); err != nil {
			return nil, Fail(fmt.Errorf("payload_invalid: %w", err))
		}
		return handler(ctx, job, payload)
	})
}
