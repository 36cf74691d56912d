// Package tickwright schedules jobs in Tickwright and works them.
//
// A [Client] schedules, reads and cancels jobs. A [Worker] claims jobs of the task types that it has handlers for, over
// the worker protocol (docs/worker-protocol.md). Both are safe for use by several goroutines.
package tickwright

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client sends requests with one API key.
type Client struct {
	url, key string
	http     *http.Client
}

// Option changes a new [Client].
type Option func(*Client)

// WithHTTPClient replaces [http.DefaultClient]. Its timeout, if any, must exceed that of a claim's wait, 20 s.
func WithHTTPClient(client *http.Client) Option {
	return func(c *Client) { c.http = client }
}

// NewClient returns a client of the API at url, such as https://jobs.example.com.
func NewClient(url, apiKey string, options ...Option) *Client {
	client := &Client{url: strings.TrimRight(url, "/"), key: apiKey, http: http.DefaultClient}
	for _, option := range options {
		option(client)
	}
	return client
}

// Error is an answer of Tickwright that is an error. Code is stable; Detail says what to do.
type Error struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (e *Error) Error() string { return fmt.Sprintf("tickwright: %s: %s", e.Code, e.Detail) }

// Retriable reports whether the same request may succeed later.
func (e *Error) Retriable() bool {
	return e.Status == http.StatusTooManyRequests || e.Status >= 500 || e.Code == "busy"
}

// Code returns the stable code of an [Error] in err's chain, or "".
func Code(err error) string {
	var problem *Error
	if errors.As(err, &problem) {
		return problem.Code
	}
	return ""
}

// Status is the state of a job.
type Status string

// The states of a job.
const (
	Waiting    Status = "waiting" // for other jobs of its workflow
	Pending    Status = "pending"
	Processing Status = "processing"
	Completed  Status = "completed"
	Failed     Status = "failed"
	Cancelled  Status = "cancelled"
)

// Ended reports whether a job in this state has ended.
func (s Status) Ended() bool { return s == Completed || s == Failed || s == Cancelled }

// NewJob is a job to schedule. Only Type is required; without At and Delay it is due at once.
type NewJob struct {
	Type      string
	Payload   any
	At        time.Time
	Delay     time.Duration // from the database's now
	Key       string        // the same key with the same request returns the job that exists
	Priority  int           // -100 to 100; higher is earlier, among jobs that are due
	Attempts  int           // at most; that of the type by default
	Timeout   time.Duration
	ExpiresAt time.Time // it must not start later
}

// MarshalJSON returns the job as the API reads it.
func (j NewJob) MarshalJSON() ([]byte, error) {
	body := map[string]any{"task_type": j.Type}
	set := func(name string, value any, given bool) {
		if given {
			body[name] = value
		}
	}
	set("payload", j.Payload, j.Payload != nil)
	set("execute_at", j.At.Format(time.RFC3339Nano), !j.At.IsZero())
	set("delay", durationText(j.Delay), j.Delay != 0)
	set("idempotency_key", j.Key, j.Key != "")
	set("priority", j.Priority, j.Priority != 0)
	set("max_attempts", j.Attempts, j.Attempts != 0)
	set("timeout", durationText(j.Timeout), j.Timeout != 0)
	set("expires_at", j.ExpiresAt.Format(time.RFC3339Nano), !j.ExpiresAt.IsZero())
	return json.Marshal(body)
}

// Scheduled is a scheduled job; Created is false where one with its key existed.
type Scheduled struct {
	ID      int64 `json:"id"`
	Created bool  `json:"created"`
}

// Imported is the result of [Client.ScheduleMany].
type Imported struct {
	Created  int `json:"created"`
	Existing int `json:"existing"`
	Rejected int `json:"rejected"`
	Rejects  []struct {
		Line    int    `json:"line"`
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"rejects"`
}

// JobInfo is a job as it is now. Payload, Result and Progress are null in lists.
type JobInfo struct {
	ID          int64           `json:"id"`
	Type        string          `json:"task_type"`
	Status      Status          `json:"status"`
	Payload     json.RawMessage `json:"payload"`
	Result      json.RawMessage `json:"result"`
	Progress    json.RawMessage `json:"progress"`
	ExecuteAt   time.Time       `json:"execute_at"`
	DueAt       time.Time       `json:"due_at"`
	Attempts    int             `json:"attempts"`
	MaxAttempts int             `json:"max_attempts"`
	Priority    int             `json:"priority"`
	Key         string          `json:"idempotency_key"`
	Error       string          `json:"error_message"`
	CreatedAt   time.Time       `json:"created_at"`
	CompletedAt *time.Time      `json:"completed_at"`
	Fence       int64           `json:"fence"`
}

// JobError is returned by [Client.Wait] for a job that did not complete.
type JobError struct{ Job JobInfo }

func (e *JobError) Error() string {
	return fmt.Sprintf("tickwright: job %d %s: %s", e.Job.ID, e.Job.Status, e.Job.Error)
}

// Schedule schedules one job; it returns when the job is committed.
func (c *Client) Schedule(ctx context.Context, job NewJob) (Scheduled, error) {
	var made Scheduled
	return made, c.send(ctx, http.MethodPost, "/v1/jobs", nil, job, &made)
}

// ScheduleMany schedules jobs in one request. A bad job is rejected and affects no other.
func (c *Client) ScheduleMany(ctx context.Context, jobs []NewJob) (Imported, error) {
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, job := range jobs {
		if err := encoder.Encode(job); err != nil {
			return Imported{}, err
		}
	}
	var done Imported
	header := http.Header{"Content-Type": {"application/x-ndjson"}}
	return done, c.do(ctx, http.MethodPost, "/v1/jobs:bulk", header, &lines, &done)
}

// Get returns one job, live or finished.
func (c *Client) Get(ctx context.Context, id int64) (JobInfo, error) {
	var job JobInfo
	return job, c.send(ctx, http.MethodGet, fmt.Sprintf("/v1/jobs/%d", id), nil, nil, &job)
}

// Cancel cancels a job. It reports whether the job never starts; otherwise its worker is asked to stop it.
func (c *Client) Cancel(ctx context.Context, id int64) (bool, error) {
	var done struct{ Outcome string }
	err := c.send(ctx, http.MethodPost, fmt.Sprintf("/v1/jobs/%d/cancel", id), nil, nil, &done)
	return done.Outcome == "cancelled", err
}

// Filter selects jobs of [Client.List]. The zero value selects all.
type Filter struct {
	Status []Status
	Type   string
	From   time.Time // execute_at, inclusive
	To     time.Time // execute_at, exclusive
	Limit  int       // of a page, at most 200
	Cursor string    // Page.Next of the page before
}

// Page is a page of jobs; Next is "" on the last one.
type Page struct {
	Items []JobInfo `json:"items"`
	Next  string    `json:"next"`
}

// List returns a page of jobs, newest first.
func (c *Client) List(ctx context.Context, filter Filter) (Page, error) {
	query := url.Values{}
	for _, status := range filter.Status {
		query.Add("status", string(status))
	}
	for name, value := range map[string]string{"task_type": filter.Type, "cursor": filter.Cursor} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, at := range map[string]time.Time{"execute_from": filter.From, "execute_to": filter.To} {
		if !at.IsZero() {
			query.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	if filter.Limit > 0 {
		query.Set("limit", strconv.Itoa(filter.Limit))
	}
	var page Page
	return page, c.send(ctx, http.MethodGet, "/v1/jobs?"+query.Encode(), nil, nil, &page)
}

// Wait waits until a job has ended, and decodes its result into result unless that is nil. It returns a [*JobError]
// where the job did not complete.
func (c *Client) Wait(ctx context.Context, id int64, result any) error {
	wait := "?wait=10s"
	for {
		var job JobInfo
		err := c.send(ctx, http.MethodGet, fmt.Sprintf("/v1/jobs/%d%s", id, wait), nil, nil, &job)
		switch {
		case Code(err) == "unknown_parameter": // a server of an earlier release
			wait = ""
			continue
		case err != nil:
			return err
		case job.Status == Completed && result == nil:
			return nil
		case job.Status == Completed:
			return json.Unmarshal(job.Result, result)
		case job.Status.Ended():
			return &JobError{job}
		case wait == "":
			if err := sleep(ctx, 500*time.Millisecond); err != nil {
				return err
			}
		}
	}
}

func (c *Client) send(ctx context.Context, method, path string, header http.Header, body, answer any) error {
	if body == nil {
		return c.do(ctx, method, path, header, nil, answer)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	return c.do(ctx, method, path, header, bytes.NewReader(text), answer)
}

func (c *Client) do(ctx context.Context, method, path string, header http.Header, body io.Reader, answer any) error {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return err
	}
	if header != nil {
		request.Header = header
	}
	request.Header.Set("Authorization", "Bearer "+c.key)
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 400 {
		problem := &Error{}
		_ = json.Unmarshal(text, problem) // a proxy's page has no fields
		problem.Status = response.StatusCode
		if problem.Code == "" {
			problem.Code, problem.Detail = fmt.Sprintf("http_%d", response.StatusCode), http.StatusText(response.StatusCode)
		}
		return problem
	}
	if answer == nil || len(text) == 0 {
		return nil
	}
	return json.Unmarshal(text, answer)
}

func durationText(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10) + "ms"
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
