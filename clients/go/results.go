package tickwright

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

type result struct {
	ID         int64           `json:"id"`
	Fence      int64           `json:"fence"`
	Kind       string          `json:"kind,omitempty"`
	Outcome    string          `json:"outcome"`
	Result     json.RawMessage `json:"result,omitempty"`
	Code       string          `json:"code,omitempty"`
	Message    *string         `json:"message,omitempty"`
	Final      bool            `json:"final,omitempty"`
	RetryAfter string          `json:"retry_after,omitempty"`
	Wait       string          `json:"wait,omitempty"`
	Started    bool            `json:"started,omitempty"`

	session *session
}

func resultOf(job *Job, value any, err error) result {
	reason := job.StopReason()
	var fail failError
	var retry retryError
	var snooze snoozeError
	var throttled throttledError
	switch {
	case reason == ErrTimeout:
		return failed(fmt.Sprintf("stopped after %d ms", job.TimeoutMS), "timeout")
	case err == nil:
		text, err := json.Marshal(value)
		if err != nil {
			return failed(err.Error(), "result_invalid")
		}
		return result{Outcome: "complete", Result: text}
	case reason == ErrCancelled:
		return result{Outcome: "cancelled"}
	case reason == ErrShutdown:
		return result{Outcome: "release", Started: true}
	case errors.As(err, &snooze):
		return result{Outcome: "snooze", Wait: durationText(snooze.wait)}
	case errors.As(err, &throttled) && (job.Kind == kindPoll || job.Kind == kindTask):
		return result{Outcome: "throttled", RetryAfter: durationText(throttled.after)}
	case errors.As(err, &throttled):
		found := failed(err.Error(), "throttled")
		found.RetryAfter = durationText(throttled.after)
		return found
	case errors.As(err, &fail):
		found := failed(err.Error(), "handler_failed")
		found.Final = true
		return found
	case errors.As(err, &retry):
		found := failed(err.Error(), "handler_retry")
		found.RetryAfter = durationText(retry.after)
		return found
	}
	return failed(err.Error(), "handler_error")
}

func failed(message, code string) result {
	if len(message) > 10_000 {
		message = message[:10_000]
	}
	return result{Outcome: "fail", Code: code, Message: &message}
}

func (w *Worker) report(job *Job, ended result) {
	ended.ID, ended.Fence, ended.Kind, ended.session = job.ID, job.Fence, job.Kind, job.session
	w.mutex.Lock()
	w.busy--
	if w.running[job.ID] == job {
		delete(w.running, job.ID)
	}
	if job.session.lost.Err() == nil {
		w.results = append(w.results, ended)
	}
	w.mutex.Unlock()
	notify(w.changed)
	notify(w.pending)
}

func notify(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// write sends results, a batch at a time: those that arrive meanwhile go into the next one.
func (w *Worker) write(ctx context.Context) {
	for ctx.Err() == nil {
		batch, s := w.batch()
		if len(batch) == 0 {
			select {
			case <-w.pending:
			case <-ctx.Done():
			}
			continue
		}
		var answer struct{ Locked []int64 }
		err := s.call(s.lost, "results", map[string]any{"results": batch}, &answer)
		var problem *Error
		switch {
		case err == nil:
			w.forget(batch, answer.Locked)
			notify(w.changed)
			if len(answer.Locked) > 0 {
				_ = sleep(ctx, lockedEvery)
			}
		case s.lost.Err() != nil:
			w.dropAll(s)
		case errors.As(err, &problem) && !problem.Retriable():
			w.survive(err)
			w.refused(batch, problem)
		default:
			w.survive(err)
			_ = sleep(ctx, retryEvery)
		}
	}
}

func (w *Worker) batch() ([]result, *session) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if len(w.results) == 0 {
		return nil, nil
	}
	s, size, count := w.results[0].session, 0, 0
	for _, one := range w.results {
		size += len(one.Result) + 200
		if one.session != s || count == resultsMax || (size > resultBytesMax && count > 0) {
			break
		}
		count++
	}
	return append([]result(nil), w.results[:count]...), s
}

func (w *Worker) forget(batch []result, locked []int64) {
	again := map[int64]bool{}
	for _, id := range locked {
		again[id] = true
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	left := w.results[len(batch):]
	w.results = nil
	for _, one := range batch {
		if again[one.ID] {
			w.results = append(w.results, one)
		}
	}
	w.results = append(w.results, left...)
}

// refused fails the job of the largest result of a batch that the server refuses for good.
func (w *Worker) refused(batch []result, problem *Error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	worst := 0
	for index := range batch {
		if len(batch[index].Result) > len(batch[worst].Result) {
			worst = index
		}
	}
	if worst >= len(w.results) || w.results[worst].ID != batch[worst].ID {
		return
	}
	if w.results[worst].Code == "result_refused" {
		w.results = append(w.results[:worst], w.results[worst+1:]...)
		return
	}
	refused := failed(problem.Detail, "result_refused")
	refused.ID, refused.Fence, refused.Kind = batch[worst].ID, batch[worst].Fence, batch[worst].Kind
	refused.session, refused.Final = batch[worst].session, true
	w.results[worst] = refused
}
