/** The product's logo. */
export function Mark({ size = 22 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="7" fill="#1f4e8c" />
      <circle cx="16" cy="16" r="9" fill="none" stroke="#fff" strokeWidth="2.4" />
      <path d="M16 10.5V16l4 2.6" fill="none" stroke="#fff" strokeWidth="2.4" strokeLinecap="round" strokeLinejoin="round" />
    </svg>
  );
}
